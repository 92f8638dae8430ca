"""Linear layers and embeddings in ONNX Runtime's kernels, at the precision asked for."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from dflash_compile.export.parameter_names import EMBEDDING, HEAD

from ..graphs.edit import Editor, nodes, replace_node
from ..graphs.lowered import WeightBindings, static_shape
from .precision import Precision
from .quantize import IntGroups

# The kernel quantises activations to int8, block by block of each row, so rows do not depend on one another.
_ACCURACY_INT8 = 4


def weighted_linears(model: ir.Model, bindings: WeightBindings, precision: Precision) -> None:
    """Linear as MatMulNBits, or FusedMatMul where it stays in float32: neither needs the weight transposed."""
    for node in nodes(model, "Linear"):
        x, weight = node.inputs
        assert weight is not None
        shape, ref = static_shape(weight), bindings.weights[str(weight.name)]
        # By its weight, not by its place: a graph of several passes has several heads. A tied one is the embedding.
        encoding = precision.linear(ref, shape, head=ref.tensor in (HEAD, EMBEDDING))
        stored = bindings.encode(weight, encoding)
        attributes = {"transB": 1}
        if isinstance(encoding, IntGroups):
            attributes = {
                "K": shape[1],
                "N": shape[0],
                "bits": encoding.bits,
                "block_size": encoding.block,
                "accuracy_level": _ACCURACY_INT8,
            }
        op = "MatMulNBits" if isinstance(encoding, IntGroups) else "FusedMatMul"
        replace_node(
            node,
            [Editor(model, node).one(op, [x, *stored], attributes, domain="com.microsoft", like=node.outputs[0])],
        )


def weighted_embeddings(model: ir.Model, bindings: WeightBindings, precision: Precision) -> None:
    """Rows of a half-precision table are cast after they are looked up, so the table is never widened as a whole."""
    encoding = precision.embedding()
    found = [node for node in nodes(model, "Gather", "") if _is_table(node.inputs[0], bindings.weights.__contains__)]
    for node in found:
        edit = Editor(model, node)
        (table,) = bindings.encode(node.inputs[0], encoding)  # type: ignore[arg-type]
        if encoding.half:
            rows = edit.one("Gather", [table, node.inputs[1]], {"axis": 0})
            replace_node(node, [edit.one("Cast", [rows], {"to": ir.DataType.FLOAT}, like=node.outputs[0])])


def _is_table(value: ir.Value | None, is_weight: Callable[[str], bool]) -> bool:
    return value is not None and value.is_initializer() and is_weight(str(value.name))
