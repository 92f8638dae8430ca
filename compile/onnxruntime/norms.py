"""RMSNorm in ONNX Runtime's kernels, fused with the residual addition before it where there is one."""

from __future__ import annotations

import onnx_ir as ir

from ..graphs.edit import Editor, made_by, nodes, replace_all_uses, replace_node


def skip_norms(model: ir.Model) -> None:
    """`RMSNorm(a + b)` as one SkipSimplifiedLayerNormalization, which returns the sum too."""
    for node in nodes(model, "RMSNorm"):
        add = made_by(node.inputs[0], "Add")
        if add is None or not _same_rows(add):
            continue
        edit = Editor(model, add)
        total = add.outputs[0]
        attributes = {"epsilon": node.attributes["eps"].as_float()}
        normed, mean, inverse, summed = edit.add(
            "SkipSimplifiedLayerNormalization",
            [*add.inputs, node.inputs[1]],
            attributes,
            domain="com.microsoft",
            outputs=4,
            like=(node.outputs[0], None, None, total),
        )
        mean.name = inverse.name = ""
        replace_node(node, [normed])
        replace_all_uses([total], [summed])
        model.graph.remove(add, safe=True)


def _same_rows(add: ir.Node) -> bool:
    """Whether both sides are [1, S, H]: the kernel broadcasts nothing."""
    shapes = [value.shape for value in add.inputs if value is not None]
    return len(shapes) == 2 and shapes[0] is not None and len(shapes[0]) == 3 and shapes[0] == shapes[1]


def simplified_norms(model: ir.Model) -> None:
    """The remaining RMSNorm as SimplifiedLayerNormalization."""
    for node in nodes(model, "RMSNorm"):
        attributes = {"axis": -1, "epsilon": node.attributes["eps"].as_float(), "stash_type": 1}
        replace_node(
            node,
            [Editor(model, node).one("SimplifiedLayerNormalization", node.inputs, attributes, like=node.outputs[0])],
        )
