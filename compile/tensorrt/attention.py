"""KVAttention and KVWrite for TensorRT: caches updated in place, attention over as many columns as are written.

Q is scaled beforehand: as an attribute TensorRT would apply the scale to the whole K cache. What a causal kind cannot
say, a window or heads folded into rows, is said by a mask. Sinks fit no fused kernel: there attention is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import onnx_ir as ir

from dflash_compile.export.ops.semantic import NO_WINDOW

from ..graphs.edit import Editor, Value, nodes, replace_node
from ..graphs.positions import Positions
from ..graphs.standard import ANCHORED, SINKS
from .functions import ATTENTION, DOMAIN, LOWER_RIGHT, MASKED, NO_MASK, UPDATE
from .sinks import sunk


def lower_attention(model: ir.Model, positions: Positions, compute: ir.DataType, folds: bool) -> None:
    """Replace every KVAttention; with `folds`, query heads that share a key head become rows of one head."""
    for node in [*nodes(model, "KVAttention"), *nodes(model, ANCHORED), *nodes(model, SINKS)]:
        q, k, v, k_cache, v_cache, _, *sinks = node.inputs
        out, k_out, v_out = node.outputs
        edit = Editor(model, node)
        anchored = node.op_type == ANCHORED
        window, causal = node.attributes["window"].as_int(), bool(node.attributes["causal"].as_int())
        scale = edit.constant(np.array(node.attributes["scale"].as_float(), np.float32))
        query = cast(edit, edit.one("Mul", [q, scale], like=q), compute)
        keys, values = (
            _update(edit, cache, new, positions, compute, like)
            for cache, new, like in ((k_cache, k, k_out), (v_cache, v, v_out))
        )
        heads, kv_heads, length = int(out.shape[1]), int(k_out.shape[1]), int(k_out.shape[2])  # type: ignore[index, arg-type]
        groups = heads // kv_heads if folds or sinks else 1
        if window == NO_WINDOW and groups == 1 and not sinks:
            attributes = {
                "causal_kind": LOWER_RIGHT if causal else NO_MASK,
                "TRT_decomposable": int(compute == ir.DataType.FLOAT),
            }
            attended = edit.one(
                ATTENTION, [query, keys, values, None, None, positions.total()], attributes, domain=DOMAIN
            )
        else:
            seen = {"keys": keys, "values": values, "mask": positions.folded(length, window, causal, anchored, groups)}
            attended = _folded(
                edit,
                query,
                groups,
                partial(sunk, edit, sinks=sinks[0], **seen) if sinks else partial(_attended, edit, **seen),
            )
        attended.type, attended.shape = ir.TensorType(compute), out.shape
        replace_node(node, [cast(edit, attended, ir.DataType.FLOAT, like=out), keys, values])


def lower_writes(model: ir.Model, positions: Positions, compute: ir.DataType) -> None:
    """Replace every KVWrite."""
    for node in nodes(model, "KVWrite"):
        new, cache, _ = node.inputs
        replace_node(node, [_update(Editor(model, node), cache, new, positions, compute, node.outputs[0])])


def cast(edit: Editor, value: Value, dtype: ir.DataType, like: Value = None) -> ir.Value:
    """`value` in `dtype`; `like` gives type and shape."""
    assert value is not None
    if dtype == value.dtype:
        return value
    done = edit.one("Cast", [value], {"to": dtype}, like=like)
    done.type, done.shape = ir.TensorType(dtype), value.shape
    return done


def _update(
    edit: Editor, cache: Value, new: Value, positions: Positions, compute: ir.DataType, like: ir.Value
) -> ir.Value:
    updated = edit.one(UPDATE, [cache, cast(edit, new, compute), positions.position], domain=DOMAIN, like=like)
    updated.type = ir.TensorType(compute)
    return updated


def _folded(edit: Editor, query: ir.Value, groups: int, attend: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """`attend` with heads h = kv * groups + g as rows g of head kv, so that folding is a change of shape and moves
    nothing.
    """
    if groups == 1:
        return attend(query)
    _, heads, _, width = query.shape  # type: ignore[misc]
    folded = edit.one("Reshape", [query, edit.constant(np.array([1, heads // groups, -1, width], np.int64))])
    folded.type, folded.shape = query.type, ir.Shape([1, heads // groups, None, width])
    return edit.one("Reshape", [attend(folded), edit.constant(np.array([1, heads, -1, width], np.int64))])


def _attended(edit: Editor, query: ir.Value, keys: ir.Value, values: ir.Value, mask: ir.Value) -> ir.Value:
    # Not ONNX's Attention, before which TensorRT copies the K cache once more.
    out = edit.one(
        ATTENTION,
        [query, keys, values, mask],
        {"TRT_decomposable": int(keys.dtype == ir.DataType.FLOAT)},
        domain=DOMAIN,
    )
    node = out.producer()
    assert node is not None
    node.overload = MASKED
    return out
