"""Q, K and V of one attention as one product, handed packed to GroupQueryAttention.

One product costs less than three of the same numbers: each has a fixed cost, and K and V are narrow. Only where nothing
lies between projections and attention but the rotation that the kernel does itself: no bias, no norm of heads.
"""

from __future__ import annotations

import onnx_ir as ir

from ..graphs.edit import Editor, made_by, nodes
from ..graphs.lowered import StackedWeight, static_shape
from ..graphs.onnx_graph import SemanticModel
from ..graphs.semantics import DOMAIN


def packed_projections(semantic: SemanticModel) -> None:
    """StackedWeight the weights of projections that read the same rows and serve one attention only.

    To be run before weights are encoded.
    """
    for attention in nodes(semantic.model, "GroupQueryAttention", "com.microsoft"):
        linears = [made_by(value, "Linear", DOMAIN) for value in attention.inputs[:3]]
        found = [node for node in linears if node is not None]
        if len(found) == 3 and _stackable(found, semantic):
            _pack(semantic, attention, found)


def _stackable(linears: list[ir.Node], semantic: SemanticModel) -> bool:
    refs = [semantic.weights[str(node.inputs[1].name)] for node in linears]  # type: ignore[union-attr]
    alike = len({(node.inputs[0], ref.owner, ref.exact) for node, ref in zip(linears, refs, strict=True)}) == 1
    # Whoever else reads a projection needs it apart: attention that hands its K and V to later layers.
    return alike and all(len(node.outputs[0].uses()) == 1 and not node.outputs[0].is_graph_output() for node in linears)


def _pack(semantic: SemanticModel, attention: ir.Node, linears: list[ir.Node]) -> None:
    weights = [node.inputs[1] for node in linears]
    refs = [semantic.weights[str(weight.name)] for weight in weights]  # type: ignore[union-attr]
    shapes = [static_shape(weight) for weight in weights]  # type: ignore[arg-type]
    rows, width = sum(shape[0] for shape in shapes), shapes[0][1]
    pieces = tuple((ref.tensor, shape[0]) for ref, shape in zip(refs, shapes, strict=True))
    stack = StackedWeight(refs[0].owner, "+".join(ref.tensor for ref in refs), refs[0].exact, pieces)
    weight = ir.Value(name=f"{stack.owner}.{stack.tensor}", shape=ir.Shape([rows, width]), type=weights[0].type)  # type: ignore[union-attr]
    semantic.model.graph.initializers.add(weight)
    semantic.weights[str(weight.name)] = stack
    old = linears[0].outputs[0]
    packed = Editor(semantic.model, attention).one("Linear", [linears[0].inputs[0], weight], domain=DOMAIN)
    packed.type, packed.shape = old.type, ir.Shape([*old.shape[:2], rows])  # type: ignore[index]
    for index, value in enumerate((packed, None, None)):
        attention.replace_input_with(index, value)
    semantic.model.graph.remove(linears, safe=True)
