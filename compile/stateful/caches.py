"""The packed cache of a graph, which its engine keeps as a state, and attention over it.

Every layer's K and V lie side by side, [2 * layers, kv, L, hd]: K of layer 0, V of layer 0, K of layer 1, …
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from dflash_compile.export.ops import NO_WINDOW

from .ops import cache_write

CACHE = "cache"
"""the name of the state"""


@dataclass(frozen=True)
class CacheShape:
    """[entries, kv_heads, length, head_dim]; `entries` is twice the number of layers."""

    entries: int
    kv_heads: int
    length: int
    head_dim: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As a shape."""
        return self.entries, self.kv_heads, self.length, self.head_dim


@dataclass
class Cache:
    """The cache of one pass, threaded through its writes: the engine's state is replaced once, at the end."""

    packed: torch.Tensor
    position: torch.Tensor

    def write(self, index: int, rows: torch.Tensor) -> None:
        """`rows` [n, kv, S, hd] become those from `position` on of the entries `index : index + n`."""
        self.packed = cache_write(self.packed, rows.to(self.packed.dtype), index, self.position)

    def read(self, index: int) -> torch.Tensor:
        """The whole entry `index`, [1, kv, L, hd]."""
        return self.packed[index : index + 1]


def visible(cache: Cache, rows: int, window: int, causal: bool, anchored: bool) -> torch.Tensor:
    """Which columns of `cache` each of `rows` rows may attend to, bool [rows, L]: the rule of `ops.kv_attention`."""
    column = torch.arange(cache.packed.shape[2], dtype=torch.int32)[None, :]
    row = cache.position + torch.arange(rows, dtype=torch.int32)[:, None]
    seen = column <= row if causal else (column < cache.position + rows).expand(rows, -1)
    if window != NO_WINDOW and anchored:
        seen = torch.logical_and(seen, column >= cache.position - window)
    elif window != NO_WINDOW:
        seen = torch.logical_and(seen, torch.logical_and(row - column < window, column - row < window))
    return seen


def attend(cache: Cache, q: torch.Tensor, index: int, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention of q [1, heads, S, hd] over entries `index` (K) and `index + 1` (V) of `cache`; mask bool [S, L].

    Query heads that share a K head are folded into its rows, and the scale into q: so converters keep their fused attention.
    """
    _, heads, rows, width = q.shape
    keys, values = cache.read(index).to(q.dtype), cache.read(index + 1).to(q.dtype)
    groups = heads // keys.shape[1]
    factor = scale * width**0.5  # the fused operator divides by sqrt(width)
    q = q if abs(factor - 1) < 1e-6 else q * factor
    folded = q.reshape(1, keys.shape[1], groups * rows, width)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask.repeat(groups, 1)[None, None])
    return out.reshape(1, heads, rows, width)
