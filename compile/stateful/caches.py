"""Where the K/V rows of a graph live: in a state that the engine keeps, or at the host, which hands them in and takes new rows out.

Both lay every layer's K and V side by side, [2 * layers, kv, L, hd]: K of layer 0, V of layer 0, K of layer 1, …
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn import functional as F

from dflash_compile.export.ops import NO_WINDOW

from .ops import cache_write

CACHE, ROWS = "cache", "rows"
"""names of the packed cache, as state or input, and of the output with the rows that are new"""


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


class Cache(Protocol):
    """The packed cache of one pass through a graph."""

    def write(self, index: int, rows: torch.Tensor) -> None:
        """`rows` [n, kv, S, hd] become the newest of entries `index : index + n`."""
        ...

    def read(self, index: int) -> torch.Tensor:
        """Everything that entry `index` may be asked for, [1, kv, columns, hd] in float32 graphs' dtype."""
        ...

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The position of every column of `read`, int32 [columns], and which of them hold anything, bool [columns]."""
        ...


@dataclass
class StateCache:
    """The cache as a state: written in place at `position`, then read whole."""

    packed: torch.Tensor
    position: torch.Tensor

    def write(self, index: int, rows: torch.Tensor) -> None:
        self.packed = cache_write(self.packed, rows.to(self.packed.dtype), index, self.position)

    def read(self, index: int) -> torch.Tensor:
        return self.packed[index : index + 1]

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        column = torch.arange(self.packed.shape[2], dtype=torch.int32)
        return column, column < self.position + rows


@dataclass
class PortCache:
    """The cache as an input, never changed: attention sees it and the new rows behind it, which leave as an output."""

    packed: torch.Tensor
    position: torch.Tensor
    fresh: dict[int, torch.Tensor] = field(default_factory=dict)

    def write(self, index: int, rows: torch.Tensor) -> None:
        self.fresh |= {index + offset: rows[offset : offset + 1].to(self.packed.dtype) for offset in range(rows.shape[0])}

    def read(self, index: int) -> torch.Tensor:
        return torch.cat([self.packed[index : index + 1], self.fresh[index]], dim=2)

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        column = torch.arange(self.packed.shape[2], dtype=torch.int32)
        row = torch.arange(rows, dtype=torch.int32)
        return torch.cat([column, self.position + row]), torch.cat([column < self.position, row >= 0])

    def rows(self) -> torch.Tensor:
        """The new rows of every entry, [entries, kv, S, hd]."""
        return torch.cat([self.fresh[index] for index in sorted(self.fresh)])


def visible(cache: Cache, position: torch.Tensor, rows: int, window: int, causal: bool) -> torch.Tensor:
    """Which columns of `cache` each of `rows` rows may attend to, bool [rows, columns]: the rule of `ops.kv_attention`."""
    column, held = cache.columns(rows)
    row = position + torch.arange(rows, dtype=torch.int32)[:, None]
    seen = torch.logical_and(held[None, :], column[None, :] <= row) if causal else held[None, :].expand(rows, -1)
    if window != NO_WINDOW:
        seen = torch.logical_and(seen, torch.logical_and(row - column < window, column - row < window))
    return seen


def attend(cache: Cache, q: torch.Tensor, index: int, mask: torch.Tensor, scale: float, cast: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Attention of q [1, heads, S, hd] over entries `index` (K) and `index + 1` (V) of `cache`; mask bool [S, columns].

    Query heads that share a K head are folded into its rows, and the scale into q: so both converters keep their fused attention.
    """
    _, heads, rows, width = q.shape
    keys, values = cast(cache.read(index)), cast(cache.read(index + 1))
    groups = heads // keys.shape[1]
    factor = scale * width**0.5  # the fused operator divides by sqrt(width)
    q = q if abs(factor - 1) < 1e-6 else q * factor
    folded = q.reshape(1, keys.shape[1], groups * rows, width)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask.repeat(groups, 1)[None, None])
    return out.reshape(1, heads, rows, width)
