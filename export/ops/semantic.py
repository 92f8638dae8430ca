"""The semantic operators of a traced graph, each with its torch reference.

Tracing leaves these four whole; every back-end lowers them its own way (`compile/`). Under `torch.export` the fake
implementations give shapes only, so nothing here ever needs real weights.

All take `position` as int32 [1]: the absolute position of the first of the S rows.
"""

from __future__ import annotations

import torch
from torch.library import custom_op

NO_WINDOW = 0


def _visible(position: torch.Tensor, rows: int, length: int, window: int, causal: bool, anchored: bool) -> torch.Tensor:
    """Which cache columns each row may attend to, bool [S, L].

    A window of W keeps columns with `row - column < W` and, where later rows are visible, `column - row < W`. An
    anchored one keeps the W columns before `position` and all from there on.
    """
    row = position.long() + torch.arange(rows, device=position.device)[:, None]
    column = torch.arange(length, device=position.device)[None, :]
    visible = column <= row if causal else (column < position.long() + rows).expand(rows, -1)
    if window != NO_WINDOW and anchored:
        visible = visible & (column >= position.long() - window)
    elif window != NO_WINDOW:
        visible = visible & (row - column < window) & (column - row < window)
    return visible


@custom_op("dflash::kv_write", mutates_args=())
def kv_write(new: torch.Tensor, cache: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """`cache` [1, kv, L, hd] with `new` [1, kv, S, hd] at rows `position : position + S`."""
    start = int(position)
    return torch.cat([cache[:, :, :start], new, cache[:, :, start + new.shape[2] :]], dim=2)


@kv_write.register_fake
def like_cache(_new: torch.Tensor, cache: torch.Tensor, _position: torch.Tensor) -> torch.Tensor:
    """What writing to `cache` gives, by shape and dtype only."""
    return torch.empty_like(cache)


@custom_op("dflash::kv_attention", mutates_args=())
def kv_attention(
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
    """Write S new rows to the cache, then attend over everything up to `position + S`.

    q [1, heads, S, hd]; k, v [1, kv, S, hd]; caches [1, kv, L, hd]. Returns (out [1, heads, S, hd], k_cache, v_cache).
    `window` is in tokens, `NO_WINDOW` for full attention; `anchored` counts it from `position`, not from each row.
    `sinks` [heads] are scores of one more column, which has no value. Rows past `position + S` are never read: that is
    what makes rollback a smaller position and nothing else.
    """
    k_cache, v_cache = kv_write(k, k_cache, position), kv_write(v, v_cache, position)
    mask = _visible(position, q.shape[2], k_cache.shape[2], window, causal, anchored)
    end = int(position) + q.shape[2]
    return attend(q, k_cache[:, :, :end], v_cache[:, :, :end], mask[:, :end], scale, sinks), k_cache, v_cache


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Grouped attention under a `mask` bool [S, columns]; with `sinks`, the softmax counts one more column for each
    head, of that score and no value.
    """
    if sinks is None:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    groups = q.shape[1] // k.shape[1]
    scores = (q @ k.repeat_interleave(groups, 1).transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
    column = sinks.to(q.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    shares = torch.cat([scores, column], -1).softmax(-1)[..., :-1]
    return shares @ v.repeat_interleave(groups, 1)


@kv_attention.register_fake
def like_attention(
    q: torch.Tensor,
    _k: torch.Tensor,
    _v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *_: object,
    **__: object,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What attention over caches gives, by shape and dtype only."""
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


@custom_op("dflash::rotary", mutates_args=())
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Half-split rotary embedding. x [1, heads, S, hd]; cos, sin tables [positions, hd / 2], row p for position p."""
    start = int(position)
    c, s = (table[start : start + x.shape[2]].to(x.dtype) for table in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


@rotary.register_fake
def _(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@custom_op("dflash::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last axis, computed in float32 and returned in x's dtype."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty_like(x)
