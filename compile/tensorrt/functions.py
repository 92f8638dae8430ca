"""TensorRT's own operators as functions of the model, so that ONNX Runtime runs the very file that TensorRT compiles.

TensorRT knows both by name and never reads these bodies. What the operators mean: docs/TensorRT-Custom-Operators of
onnx-tensorrt.
"""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

DOMAIN, UPDATE, ATTENTION = "trt", "TRT_KVCacheUpdate", "TRT_Attention"
MASKED = "masked"
"""overload of `ATTENTION` with a mask: TensorRT tells the two apart by their inputs, ONNX Runtime by this"""
LOWER_RIGHT, NO_MASK = "lower_right", "none"

_UPDATE = """
<domain: "trt", opset_import: ["" : 24]>
TRT_KVCacheUpdate (cache, update, write_indices) => (updated)
{
    start = Cast <to: int = 7> (write_indices)
    updated = TensorScatter <axis: int = -2> (cache, update, start)
}
"""

# Row i of the last S rows before `kv_lengths` sees everything up to itself; without causality everything before
# `kv_lengths`.
_ATTENTION = """
<domain: "trt", opset_import: ["" : 24]>
TRT_Attention <causal_kind, TRT_decomposable> (q, k, v, no_mask, no_query_lengths, kv_lengths) => (out)
{
    length = Cast <to: int = 7> (kv_lengths)
    row_count = Shape <start: int = 2, end: int = 3> (q)
    column_count = Shape <start: int = 2, end: int = 3> (k)
    zero = Constant <value: tensor = int64 {0}> ()
    one = Constant <value: tensor = int64 {1}> ()
    row_axis = Constant <value: tensor = int64[1] {1}> ()
    column_axis = Constant <value: tensor = int64[1] {0}> ()
    rows_scalar = Squeeze (row_count)
    columns_scalar = Squeeze (column_count)
    steps = Range (zero, rows_scalar, one)
    columns = Range (zero, columns_scalar, one)
    first = Sub (length, row_count)
    positions = Add (steps, first)
    row = Unsqueeze (positions, row_axis)
    column = Unsqueeze (columns, column_axis)
    before = LessOrEqual (column, row)
    written = Less (column, length)
    kind = Constant <value_string: string = @causal_kind> ()
    lower_right = Constant <value_string: string = "lower_right"> ()
    causal = Equal (kind, lower_right)
    unbounded = Not (causal)
    allowed = Or (before, unbounded)
    visible = And (written, allowed)
    out = Attention <scale: float = 1.0> (q, k, v, visible)
}
"""

_MASKED = """
<domain: "trt", opset_import: ["" : 24]>
TRT_Attention <TRT_decomposable> (q, k, v, mask) => (out)
{
    out = Attention <scale: float = 1.0> (q, k, v, mask)
}
"""


def add_functions(model: ir.Model) -> None:
    """Give `model` the functions that its nodes call."""
    called = {(node.op_type, node.overload) for node in model.graph if node.domain == DOMAIN}
    for key, text in (((UPDATE, ""), _UPDATE), ((ATTENTION, ""), _ATTENTION), ((ATTENTION, MASKED), _MASKED)):
        if key in called:
            proto = onnx.parser.parse_function(text)
            proto.overload = key[1]
            function = ir.serde.deserialize_function(proto)
            model.functions[function.identifier()] = function
