"""KVAttention and KVWrite for TensorRT: caches updated in place, attention over as many columns as are written.

Q is scaled beforehand: as an attribute TensorRT would apply the scale to the whole K cache. What a causal kind cannot say, a window or heads folded
into rows, is said by a mask.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dflash_compile.export.ops import NO_WINDOW

from .edit import Editor, Value, nodes, supersede
from .static_positions import StaticPositions
from .trt_functions import ATTENTION, DOMAIN, LOWER_RIGHT, MASKED, NO_MASK, UPDATE


def trt_attention(model: ir.Model, positions: StaticPositions, compute: ir.DataType, folds: bool) -> bool:
    """Replace every KVAttention; with `folds`, query heads that share a key head become rows of one head."""
    found = list(nodes(model, "KVAttention"))
    for node in found:
        q, k, v, k_cache, v_cache, _ = node.inputs
        out, k_out, v_out = node.outputs
        edit = Editor(model, node)
        window, causal = node.attributes["window"].as_int(), bool(node.attributes["causal"].as_int())
        scale = edit.constant(np.array(node.attributes["scale"].as_float(), np.float32))
        query = cast(edit, edit.one("Mul", [q, scale], like=q), compute)
        keys, values = (_update(edit, cache, new, positions, compute, like) for cache, new, like in ((k_cache, k, k_out), (v_cache, v, v_out)))
        heads, kv_heads = int(out.shape[1]), int(k_out.shape[1])  # type: ignore[index, arg-type]
        if window == NO_WINDOW and not (folds and heads != kv_heads):
            attributes = {"causal_kind": LOWER_RIGHT if causal else NO_MASK, "TRT_decomposable": int(compute == ir.DataType.FLOAT)}
            attended = edit.one(ATTENTION, [query, keys, values, None, None, positions.total()], attributes, domain=DOMAIN)
        else:
            attended = _masked(edit, query, keys, values, positions, window, causal, folds)
        attended.type, attended.shape = ir.TensorType(compute), out.shape
        supersede(node.outputs, [cast(edit, attended, ir.DataType.FLOAT, like=out), keys, values])
        model.graph.remove(node, safe=True)
    return bool(found)


def trt_writes(model: ir.Model, positions: StaticPositions, compute: ir.DataType) -> bool:
    """Replace every KVWrite."""
    found = list(nodes(model, "KVWrite"))
    for node in found:
        new, cache, _ = node.inputs
        supersede(node.outputs, [_update(Editor(model, node), cache, new, positions, compute, node.outputs[0])])
        model.graph.remove(node, safe=True)
    return bool(found)


def cast(edit: Editor, value: Value, dtype: ir.DataType, like: Value = None) -> ir.Value:
    """`value` in `dtype`; `like` gives type and shape."""
    assert value is not None
    if dtype == value.dtype:
        return value
    done = edit.one("Cast", [value], {"to": dtype}, like=like)
    done.type, done.shape = ir.TensorType(dtype), value.shape
    return done


def _update(edit: Editor, cache: Value, new: Value, positions: StaticPositions, compute: ir.DataType, like: ir.Value) -> ir.Value:
    updated = edit.one(UPDATE, [cache, cast(edit, new, compute), positions.position], domain=DOMAIN, like=like)
    updated.type = ir.TensorType(compute)
    return updated


def _masked(edit: Editor, query: ir.Value, keys: ir.Value, values: ir.Value, positions: StaticPositions, window: int, causal: bool, folds: bool) -> ir.Value:
    """Attention under an explicit mask. Heads h = kv * groups + g, so that folding is a change of shape and moves nothing."""
    _, heads, rows, width = query.shape.numpy()  # type: ignore[union-attr]
    _, kv_heads, length, _ = keys.shape.numpy()  # type: ignore[union-attr]
    groups = heads // kv_heads if folds else 1
    mask = positions.folded(length, window, causal, groups)
    if groups == 1:
        return _attended(edit, query, keys, values, mask)
    folded = edit.one("Reshape", [query, edit.constant(np.array([1, kv_heads, groups * rows, width], np.int64))])
    attended = _attended(edit, folded, keys, values, mask)
    return edit.one("Reshape", [attended, edit.constant(np.array([1, heads, rows, width], np.int64))])


def _attended(edit: Editor, query: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value) -> ir.Value:
    # Not ONNX's Attention, before which TensorRT copies the K cache once more.
    out = edit.one(ATTENTION, [query, keys, values, mask], {"TRT_decomposable": int(keys.dtype == ir.DataType.FLOAT)}, domain=DOMAIN)
    node = out.producer()
    assert node is not None
    node.overload = MASKED
    return out
