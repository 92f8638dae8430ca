"""The packed cache of a graph, and attention over it: a state that its engine keeps, or an input from a host that keeps
it.

Every layer's K and V lie side by side, [2 * layers, kv, L, hd]: K of layer 0, V of layer 0, K of layer 1, …
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch.nn import functional as F

from dflash_compile.export.ops.semantic import NO_WINDOW

from .ops import cache_write

CACHE = "cache"
"""the name of the state, or of the input"""
NEW_ROWS = "rows"
"""the name of the output that hands the K and V of a call's own rows to a host that keeps the cache"""


@dataclass(frozen=True)
class CacheShape:
    """[entries, kv_heads, length, head_dim]; `entries` is twice the number of layers."""

    entries: int
    kv_heads: int
    length: int
    head_dim: int
    in_state: bool = True
    """kept by the engine; otherwise by the host, which hands it in with every call"""
    late: bool = False
    """all rows of a call reach the state in one write: for engines that copy what they write to"""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As a shape."""
        return self.entries, self.kv_heads, self.length, self.head_dim

    def opened(self, packed: torch.Tensor, position: torch.Tensor) -> Cache | LateCache | HostCache:
        """The cache `packed` of these sizes in one pass, whose rows begin at `position`."""
        if not self.in_state:
            return HostCache(packed, position)
        return LateCache(packed, position) if self.late else Cache(packed, position)


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

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Positions of what `read` gives to a pass of `rows` rows, int32 [1, L], and which of them count, bool; None:
        all.
        """
        return _all_columns(self.packed), None

    def written(self) -> torch.Tensor:
        """What the state is to be."""
        return self.packed


@dataclass
class LateCache:
    """The cache of one pass whose rows reach the state in one write, at the end: a layer attends over its own entry
    with its rows put in.
    """

    packed: torch.Tensor
    position: torch.Tensor
    own: dict[int, torch.Tensor] = field(default_factory=dict)
    entries: tuple[torch.Tensor, ...] = ()

    def write(self, index: int, rows: torch.Tensor) -> None:
        """As `Cache.write`."""
        self.own |= _by_entry(index, rows.to(self.packed.dtype))

    def read(self, index: int) -> torch.Tensor:
        """As `Cache.read`, of an entry that was written."""
        # Cut apart all at once: engines that copy slice by slice are slow at that.
        self.entries = self.entries or self.packed.split(1)
        found: torch.Tensor = cache_write(self.entries[index], self.own[index], 0, self.position)
        return found

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `Cache.columns`."""
        return _all_columns(self.packed), None

    def written(self) -> torch.Tensor:
        """As `Cache.written`."""
        found: torch.Tensor = cache_write(self.packed, _in_order(self.own), 0, self.position)
        return found


@dataclass
class HostCache:
    """The cache of one pass that only reads it: the pass's own rows come last, whatever lies at their positions."""

    packed: torch.Tensor
    position: torch.Tensor
    own: dict[int, torch.Tensor] = field(default_factory=dict)

    def write(self, index: int, rows: torch.Tensor) -> None:
        """`rows` [n, kv, S, hd] are the pass's own of the entries `index : index + n`."""
        self.own |= _by_entry(index, rows.to(self.packed.dtype))

    def read(self, index: int) -> torch.Tensor:
        """The whole entry `index` and the pass's own rows behind it, [1, kv, L + S, hd]."""
        return torch.cat([self.packed[index : index + 1], self.own[index]], dim=2)

    def columns(self, rows: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """As `Cache.columns`: of the cache only what lies before the pass counts."""
        cached = _all_columns(self.packed)
        own = self.position + torch.arange(rows, dtype=torch.int32)[None, :]
        return torch.cat([cached, own], dim=1), torch.cat(
            [cached < self.position, torch.ones(1, rows, dtype=torch.bool)], dim=1
        )

    def rows(self) -> torch.Tensor:
        """The pass's own rows of every entry, [2 * layers, kv, S, hd]."""
        return _in_order(self.own)


def _by_entry(index: int, rows: torch.Tensor) -> dict[int, torch.Tensor]:
    """`rows` [n, kv, S, hd] of the entries `index : index + n`, [1, kv, S, hd] each."""
    return {index + number: rows[number : number + 1] for number in range(rows.shape[0])}


def _in_order(own: dict[int, torch.Tensor]) -> torch.Tensor:
    """A pass's own rows of all entries, [2 * layers, kv, S, hd]."""
    return torch.cat([own[index] for index in sorted(own)])


def _all_columns(packed: torch.Tensor) -> torch.Tensor:
    return torch.arange(packed.shape[2], dtype=torch.int32)[None, :]


def visible(cache: Cache | LateCache | HostCache, rows: int, window: int, causal: bool, anchored: bool) -> torch.Tensor:
    """Which columns of `cache` each of `rows` rows may attend to, bool [rows, L]: the rule of `ops.kv_attention`."""
    column, counts = cache.columns(rows)
    row = cache.position + torch.arange(rows, dtype=torch.int32)[:, None]
    seen = column <= row if causal else (column < cache.position + rows).expand(rows, -1)
    if window != NO_WINDOW and anchored:
        seen = torch.logical_and(seen, column >= cache.position - window)
    elif window != NO_WINDOW:
        seen = torch.logical_and(seen, torch.logical_and(row - column < window, column - row < window))
    return seen if counts is None else torch.logical_and(seen, counts)


def attend(
    cache: Cache | LateCache | HostCache, q: torch.Tensor, index: int, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of q [1, heads, S, hd] over entries `index` (K) and `index + 1` (V) of `cache`; mask bool [S, L].

    Query heads that share a K head are folded into its rows, and the scale into q: so converters keep their fused
    attention.
    """
    _, heads, rows, width = q.shape
    keys, values = cache.read(index).to(q.dtype), cache.read(index + 1).to(q.dtype)
    groups = heads // keys.shape[1]
    factor = scale * width**0.5  # the fused operator divides by sqrt(width)
    q = q if abs(factor - 1) < 1e-6 else q * factor
    folded = q.reshape(1, keys.shape[1], groups * rows, width)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask.repeat(groups, 1)[None, None])
    return out.reshape(1, heads, rows, width)
