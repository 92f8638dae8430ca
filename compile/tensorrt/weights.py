"""Linear layers and embeddings for TensorRT: products in the compute dtype on weights that are dequantised where they
are read.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from dflash_compile.export.parameter_names import EMBEDDING, HEAD

from ..graphs.edit import Editor, nodes, replace_node
from ..graphs.encoding import Encoding
from ..graphs.lowered import WeightBindings, static_shape
from .attention import cast
from .encodings import NVFP4_BLOCK, NVFP4_GLOBAL, Int4Groups, NvFp4, Rows8
from .precisions import Precision


def lower_linears(model: ir.Model, bindings: WeightBindings, precision: Precision) -> None:
    """Linear as MatMul: `exact` weights in float32, all others in the compute dtype."""
    for node in nodes(model, "Linear"):
        x, weight = node.inputs
        assert weight is not None
        ref = bindings.weights[str(weight.name)]
        encoding = precision.linear(ref, static_shape(weight), head=ref.tensor in (HEAD, EMBEDDING))
        edit = Editor(model, node)
        compute = ir.DataType.FLOAT if ref.exact else precision.compute
        read = edit.one(
            "Transpose", [_dequantised(edit, bindings.encode(weight, encoding), encoding, compute)], {"perm": [1, 0]}
        )
        product = edit.one("MatMul", [cast(edit, x, compute), read])
        product.type, product.shape = ir.TensorType(compute), node.outputs[0].shape
        replace_node(node, [cast(edit, product, ir.DataType.FLOAT, like=node.outputs[0])])


def lower_embeddings(model: ir.Model, bindings: WeightBindings, precision: Precision) -> None:
    """Rows of a table, widened after they are looked up. TensorRT takes a table's encoding off where it reads a row."""
    found = [
        node
        for node in nodes(model, "Gather", "")
        if node.inputs[0] is not None and str(node.inputs[0].name) in bindings.weights
    ]
    for node in found:
        table, ids = node.inputs
        assert table is not None
        edit = Editor(model, node)
        encoding = precision.table(static_shape(table))
        read = _dequantised(edit, bindings.encode(table, encoding), encoding, precision.compute)
        rows = edit.one("Gather", [read, ids], {"axis": 0})
        rows.type, rows.shape = ir.TensorType(precision.compute), node.outputs[0].shape
        replace_node(node, [cast(edit, rows, ir.DataType.FLOAT, like=node.outputs[0])])


def _dequantised(edit: Editor, stored: list[ir.Value], encoding: Encoding, compute: ir.DataType) -> ir.Value:
    """The weight [N, K] in `compute`."""
    match encoding:
        case Rows8():
            return _read(edit, stored, {"axis": 0}, compute)
        case Int4Groups(block=block):
            return _read(edit, stored, {"axis": 1, "block_size": block}, compute)
        case NvFp4():
            unit = edit.constant(
                np.array(NVFP4_GLOBAL, np.float16 if compute == ir.DataType.FLOAT16 else ml_dtypes.bfloat16)
            )
            scales = _read(edit, [stored[1], unit], {}, compute)
            return _read(edit, [stored[0], scales], {"axis": 1, "block_size": NVFP4_BLOCK}, compute)
    return stored[0]


def _read(edit: Editor, inputs: list[ir.Value], attributes: dict[str, int], compute: ir.DataType) -> ir.Value:
    value = edit.one("DequantizeLinear", inputs, attributes, like=inputs[0])
    value.type = ir.TensorType(compute)
    return value
