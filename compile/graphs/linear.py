"""MatMul with a transposed weight becomes one `dflash::Linear(x, weight [N, K])`, the weight in the checkpoint's
layout.
"""

from __future__ import annotations

import onnx_ir as ir

from .edit import Editor, made_by, nodes, replace_node
from .semantics import DOMAIN


def linear(model: ir.Model) -> None:
    """Recover linear layers; products of two activations stay as they are."""
    for node in nodes(model, "MatMul", ""):
        transpose = made_by(node.inputs[1], "Transpose")
        weight = None if transpose is None else transpose.inputs[0]
        if weight is None or not weight.is_initializer() or weight.shape is None or len(weight.shape) != 2:
            continue
        out = Editor(model, node).one("Linear", [node.inputs[0], weight], domain=DOMAIN, like=node.outputs[0])
        replace_node(node, [out])
