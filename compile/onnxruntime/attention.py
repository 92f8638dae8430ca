"""KVAttention as ONNX Runtime's GroupQueryAttention, which rotates, writes the cache and attends in one kernel.

Rows enter and leave it flat, [1, S, heads * head_dim], so the transposes around the semantic operator go too.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from dflash_compile.export.ops.semantic import NO_WINDOW

from ..graphs.edit import Editor, Value, made_by, nodes, only_user, replace_all_uses
from ..graphs.positions import Positions
from ..graphs.semantics import DOMAIN
from ..graphs.standard import SINKS

_HEADS_FIRST = [0, 2, 1, 3]
_HEAD_SINK = 11  # the operator's input of that name


def group_query_attention(model: ir.Model, positions: Positions) -> None:
    """Replace every KVAttention that the kernel can express.

    It has no window that looks both ways, and none that starts at the anchor: those wait for the standard form.
    """
    for node in [*nodes(model, "KVAttention"), *nodes(model, SINKS)]:
        window, causal = node.attributes["window"].as_int(), node.attributes["causal"].as_int()
        if window != NO_WINDOW and not causal:
            continue
        _replace(model, node, positions, window, causal)


def _replace(model: ir.Model, node: ir.Node, positions: Positions, window: int, causal: int) -> None:
    q, k, v, k_cache, v_cache, _, *sinks = node.inputs
    out, k_out, v_out = node.outputs
    edit = Editor(model, node)
    heads, kv_heads, width = int(out.shape[1]), int(k_out.shape[1]), int(out.shape[3])  # type: ignore[index, arg-type]
    (q, k), tables = _unrotated(q, k)
    flat = [_flat(edit, value, count * width) for value, count in ((q, heads), (k, kv_heads), (v, kv_heads))]
    attributes = {
        "num_heads": heads,
        "kv_num_heads": kv_heads,
        "scale": node.attributes["scale"].as_float(),
        "do_rotary": int(bool(tables)),
        "causal": causal,
        "local_window_size": -1 if window == NO_WINDOW else window,
    }
    inputs = [*flat, k_cache, v_cache, positions.last(), positions.total(), *tables]
    if sinks:
        inputs += [None] * (_HEAD_SINK - len(inputs)) + sinks
    attended, keys, values = edit.add(
        "GroupQueryAttention", inputs, attributes, domain="com.microsoft", outputs=3, like=(None, k_out, v_out)
    )
    attended.type, attended.shape = out.type, ir.Shape([1, out.shape[2], heads * width])  # type: ignore[index]
    replace_all_uses([k_out, v_out], [keys, values])
    _bypass(edit, out, attended, heads, width)
    model.graph.remove(node, safe=True)


def _unrotated(q: Value, k: Value) -> tuple[tuple[Value, Value], list[Value]]:
    """q and k before their rotary nodes, and the tables, if both are rotated by the same ones."""
    turned = made_by(q, "Rotary", DOMAIN), made_by(k, "Rotary", DOMAIN)
    if turned[0] is None or turned[1] is None or turned[0].inputs[1:] != turned[1].inputs[1:]:
        return (q, k), []
    return (turned[0].inputs[0], turned[1].inputs[0]), list(turned[0].inputs[1:3])


def _flat(edit: Editor, value: Value, width: int) -> Value:
    """[1, heads, S, hd] as [1, S, heads * hd]: the projection itself where nothing but a reshape lies between."""
    transpose = made_by(value, "Transpose")
    if transpose is not None and list(transpose.attributes["perm"].as_ints()) == _HEADS_FIRST:
        value = transpose.inputs[0]
    else:
        value = edit.one("Transpose", [value], {"perm": _HEADS_FIRST})
    reshape = made_by(value, "Reshape")
    if (
        reshape is not None
        and (source := reshape.inputs[0]) is not None
        and source.shape is not None
        and len(source.shape) == 3
        and source.shape[2] == width
    ):
        return source
    return edit.one("Reshape", [value, edit.constant(np.array([1, -1, width], np.int64))])


def _bypass(edit: Editor, out: ir.Value, flat: ir.Value, heads: int, width: int) -> None:
    """Give `flat` to the readers of `out`, past the transpose and reshape that would only flatten it."""
    transpose = only_user(out, "Transpose")
    reshape = only_user(transpose.outputs[0], "Reshape") if transpose is not None else None
    if transpose is not None and reshape is not None and reshape.outputs[0].shape == flat.shape:
        replace_all_uses(reshape.outputs, [flat])
        edit.model.graph.remove([reshape, transpose], safe=True)
        return
    split = edit.one("Reshape", [flat, edit.constant(np.array([1, -1, heads, width], np.int64))])
    replace_all_uses([out], [edit.one("Transpose", [split], {"perm": _HEADS_FIRST}, like=out)])
