"""Semantic operators over ring caches, for layers with a sliding window: as in `semantic.py`, over the last R rows
instead of all.

The row of absolute position p lies in slot p mod R. What a slot holds follows from the position of a call alone, so a
rollback is a smaller position here too; `windows.ring_rows` says how large R has to be.
"""

from __future__ import annotations

import torch
from torch.library import custom_op

from .semantic import NO_WINDOW, attend, like_attention, like_cache


def _held(position: torch.Tensor, rows: int, ring: int) -> torch.Tensor:
    """The absolute position of the row in each slot after `rows` were written at `position`, int64 [R]; below 0 where
    nothing was written.
    """
    last = position.long() + rows - 1
    return last - (last - torch.arange(ring, device=position.device)) % ring


def visible_slots(
    position: torch.Tensor, rows: int, ring: int, window: int, causal: bool, anchored: bool
) -> torch.Tensor:
    """Which slots each row may attend to, bool [S, R]: those whose rows `ops.kv_attention` would show."""
    if window == NO_WINDOW:
        raise ValueError("a ring without a window forgets what its rows may see")
    held = _held(position, rows, ring)[None]
    row = position.long() + torch.arange(rows, device=position.device)[:, None]
    near = held >= position.long() - window if anchored else (row - held < window) & (held - row < window)
    seen = (held >= 0) & near
    return seen & (held <= row) if causal else seen.expand(rows, -1)


@custom_op("dflash::kv_ring_write", mutates_args=())
def kv_ring_write(new: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`cache` [1, kv, R, hd] with `new` [1, kv, S, hd], S at most R, in the slots of rows `position : position + S`."""
    updated = cache.clone()
    updated[:, :, (position.long() + torch.arange(new.shape[2], device=new.device)) % cache.shape[2]] = new
    return updated


kv_ring_write.register_fake(like_cache)


@custom_op("dflash::kv_ring_attention", mutates_args=())
def kv_ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    position: torch.Tensor,
    scale: float,
    window: int,
    causal: bool,
    anchored: bool = False,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`ops.kv_attention` over rings [1, kv, R, hd], for layers that have a window."""
    k_cache, v_cache = kv_ring_write(k, k_cache, position), kv_ring_write(v, v_cache, position)
    mask = visible_slots(position, q.shape[2], k_cache.shape[2], window, causal, anchored)
    return attend(q, k_cache, v_cache, mask, scale, sinks), k_cache, v_cache


kv_ring_attention.register_fake(like_attention)
