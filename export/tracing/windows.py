"""Which layers of a target look back a limited way, and how many cache rows they then need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..spec import DrafterSpec

ROUND = 64
"""rings are a multiple of this many rows long"""


def layer_windows(model: Any) -> tuple[int | None, ...]:
    """Sliding window of every decoder layer of a transformers model, in tokens; None for full attention."""
    found = (getattr(layer.self_attn, "sliding_window", None) for layer in model.get_decoder().layers)
    return tuple(int(window) if window else None for window in found)


def ring_rows(window: int | None, context: int, widest: int | None) -> int:
    """Cache rows of a layer: a ring of window + `widest` rows where that is at most half of `context`.

    While a text is shorter than the window a ring costs more time than a whole cache, whose later rows nobody looks at;
    past it, less.

    `widest` is the most rows of one call, None where rings are not wanted. So many rows are enough: a call of S rows at
    position p reads from p - window + 1 on and has written up to p + S - 1, and a call that was taken back wrote at
    most `widest` rows past a position that is no longer ahead of p. Any row it overwrote is then further back than the
    window.
    """
    if window is None or widest is None:
        return context
    rows = -(-(window + widest) // ROUND) * ROUND
    return rows if 2 * rows <= context else context


def cache_rows(windows: Sequence[int | None], context: int, widest: int | None) -> tuple[int, ...]:
    """`ring_rows` of every layer."""
    return tuple(ring_rows(window, context, widest) for window in windows)


def draft_cache_rows(spec: DrafterSpec, context: int, widest: int | None) -> tuple[int, ...]:
    """`ring_rows` of every layer of a drafter."""
    return cache_rows(spec.windows or (None,) * spec.layers, context, widest)
