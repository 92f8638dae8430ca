"""Attention with sinks, written out: TensorRT's fused kernels have no column that belongs to no token."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..graphs.edit import Editor, Value

_FLOAT = ir.DataType.FLOAT


def sunk(edit: Editor, query: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value, sinks: Value) -> ir.Value:
    """Attention whose softmax counts one more column for each head, of that score and no value; scores and shares in
    float32.

    The column is never made: with m the largest score, sink included, shares are exp(s - m) / (sum exp(s - m) +
    exp(sink - m)).
    """
    compute = query.dtype
    assert compute is not None
    scores = edit.one("MatMul", [query, edit.one("Transpose", [keys], {"perm": [0, 1, 3, 2]})])
    scores = scores if compute == _FLOAT else edit.one("Cast", [scores], {"to": _FLOAT})
    scores = edit.one("Where", [mask, scores, edit.constant(np.array(-np.inf, np.float32))])
    column = _of_rows(edit, sinks, query, mask)
    highest = edit.one("Max", [edit.one("ReduceMax", [scores, edit.constant(np.array([-1], np.int64))]), column])
    shares = edit.one("Exp", [edit.one("Sub", [scores, highest])])
    total = edit.one("ReduceSum", [shares, edit.constant(np.array([-1], np.int64))])
    total = edit.one("Add", [total, edit.one("Exp", [edit.one("Sub", [column, highest])])])
    shares = edit.one("Div", [shares, total])
    return edit.one("MatMul", [shares if compute == _FLOAT else edit.one("Cast", [shares], {"to": compute}), values])


def _of_rows(edit: Editor, sinks: Value, query: ir.Value, mask: ir.Value) -> ir.Value:
    """float32 [1, kv, groups * S, 1]: the sink of the head that each folded row belongs to."""
    kv_heads = query.shape[1]  # type: ignore[index]
    heads = edit.one("Reshape", [sinks, edit.constant(np.array([1, kv_heads, -1, 1], np.int64))])
    rows = edit.one("Shape", [mask], {"start": 2, "end": 3})
    # Row g * S + i belongs to head g of its group.
    count = edit.one("Shape", [heads], {"start": 2, "end": 3})
    ones = edit.constant(np.array([1], np.int64))
    kv = edit.constant(np.array([1, kv_heads], np.int64))
    wide = edit.one("Expand", [heads, edit.one("Concat", [kv, count, edit.one("Div", [rows, count])], {"axis": 0})])
    return edit.one("Reshape", [wide, edit.one("Concat", [kv, rows, ones], {"axis": 0})])
