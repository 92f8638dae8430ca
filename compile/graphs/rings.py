"""Attention over ring caches in standard opset 24: a circular TensorScatter, then Attention over the whole ring under a
mask of absolute positions.

What a slot holds depends on the position of a call alone, not on how the cache got there, so equal rows give equal bits
after any rollback.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .edit import Editor, nodes, replace_node
from .positions import Positions
from .standard import sunk

ATTENTION, WRITE = "KVRingAttention", "KVRingWrite"


def ring_attention(model: ir.Model, positions: Positions) -> None:
    """Replace every KVRingAttention."""
    masks = _Masks(positions)
    for node in nodes(model, ATTENTION):
        q, k, v, k_cache, v_cache, _, *sinks = node.inputs
        out, k_out, v_out = node.outputs
        edit = Editor(model, node)
        keys, values = (
            _scatter(edit, cache, new, positions, like)
            for cache, new, like in ((k_cache, k, k_out), (v_cache, v, v_out))
        )
        names = ("window", "causal", "anchored")
        mask = masks.visible(_rows(k_cache), *(node.attributes[name].as_int() for name in names))
        seen: tuple[ir.Value | None, ...] = (keys, values, mask)
        if sinks:
            seen = sunk(edit, keys, values, mask, sinks[0], int(out.shape[1]))  # type: ignore[index, arg-type]
        attended = edit.one("Attention", [q, *seen], {"scale": node.attributes["scale"].as_float()}, like=out)
        replace_node(node, [attended, keys, values])


def ring_writes(model: ir.Model, positions: Positions) -> None:
    """Replace every KVRingWrite."""
    for node in nodes(model, WRITE):
        new, cache, _ = node.inputs
        replace_node(node, [_scatter(Editor(model, node), cache, new, positions, node.outputs[0])])


class _Masks:
    """bool [S, R], one for each kind of ring, shared by layers."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._made: dict[tuple[int, ...], ir.Value] = {}

    def visible(self, ring: int, window: int, causal: int, anchored: int) -> ir.Value:
        """As `export.ring_ops.visible_slots` defines it."""
        key = (ring, window, causal, anchored)
        if key not in self._made:
            self._made[key] = self._make(*key)
        return self._made[key]

    def _make(self, ring: int, window: int, causal: int, anchored: int) -> ir.Value:
        positions, edit = self._positions, self._positions.edit
        row = edit.one("Transpose", [positions.of_rows()], {"perm": [1, 0]})
        held = self._held(ring)
        seen = edit.one("GreaterOrEqual", [held, edit.constant(np.array(0, np.int64))])
        if anchored:
            first = edit.one("Sub", [positions.start(), edit.constant(np.array([window], np.int64))])
            near = edit.one("GreaterOrEqual", [held, first])
        else:
            near = edit.one(
                "Less", [edit.one("Abs", [edit.one("Sub", [row, held])]), edit.constant(np.array(window, np.int64))]
            )
        seen = edit.one("And", [seen, near])
        if causal:
            return edit.one("And", [seen, edit.one("LessOrEqual", [held, row])])
        shape = edit.one("Concat", [positions.rows(), edit.constant(np.array([ring], np.int64))], {"axis": 0})
        return edit.one("Expand", [seen, shape])

    def _held(self, ring: int) -> ir.Value:
        """int64 [1, R]: the absolute position of the row in each slot, once this call's rows are written."""
        positions, edit = self._positions, self._positions.edit
        end = edit.one("Add", [positions.start(), positions.rows()])
        last = edit.one("Sub", [end, edit.constant(np.array([1], np.int64))])
        back = edit.one("Sub", [last, edit.constant(np.arange(ring, dtype=np.int64)[None])])
        return edit.one("Sub", [last, edit.one("Mod", [back, edit.constant(np.array(ring, np.int64))])])


def _scatter(
    edit: Editor, cache: ir.Value | None, new: ir.Value | None, positions: Positions, like: ir.Value
) -> ir.Value:
    slot = edit.one("Mod", [positions.start(), edit.constant(np.array(_rows(cache), np.int64))])
    return edit.one("TensorScatter", [cache, new, slot], {"axis": -2, "mode": "circular"}, like=like)


def _rows(cache: ir.Value | None) -> int:
    return int(cache.shape[2])  # type: ignore[union-attr, index, arg-type]
