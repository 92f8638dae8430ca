"""The static graphs of a pair: which roles there are, whose they are, and for how many rows.

Back-ends declare the rest in their own folders: ports, the form of the cache, which widths share an engine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dflash_compile.export.tracing.graph import Graph, Owner
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS

from ..pair_sizes import Models


@dataclass(frozen=True)
class Role:
    """One graph of a bundle, before it is traced."""

    name: str
    """prefill, verify, decode, inject or draft"""
    owner: Owner
    widths: tuple[int, ...]
    """row counts, widest first; where there are several, they share one graph of free width"""

    @property
    def rows(self) -> int:
        """The widest."""
        return self.widths[0]

    def trace(self, models: Models, length: int | None = None) -> Graph:
        """The semantic graph, over caches of `length` rows (None: of the context)."""
        target, length = models.target.spec, length or models.context
        rows = self.rows if len(self.widths) == 1 else None
        if self.name == "inject":
            return trace_inject(models.drafter, target, length, rows)
        if self.name == "draft":
            return trace_draft(models.drafter, target, length, rows)
        picked = 1 if self.name == "prefill" else None
        return trace_target(models.target, models.drafter.spec.taps, length, rows, picked)


def static_roles(
    models: Models, verify: Sequence[tuple[int, ...]], draft: Sequence[int], owners: Collection[Owner]
) -> tuple[Role, ...]:
    """The roles of `owners`: a verify graph for each of `verify`, its widths, a draft for each of `draft`, its rows.

    Inject takes the rows of a prefill, or of a block.
    """
    prefill = prefill_rows(models)
    table: tuple[tuple[str, Owner, Sequence[tuple[int, ...]]], ...] = (
        ("prefill", "target", ((prefill,),)),
        ("verify", "target", verify),
        ("decode", "target", ((1,),)),
        ("inject", "drafter", [(rows,) for rows in sorted({prefill, models.block}, reverse=True)]),
        ("draft", "drafter", [(rows,) for rows in draft]),
    )
    return tuple(Role(name, owner, widths) for name, owner, graphs in table if owner in owners for widths in graphs)


def prefill_rows(models: Models) -> int:
    """Rows of a prefill."""
    return max(PREFILL_ROWS, models.block)


def cache_length(models: Models, alignment: int) -> int:
    """Rows of the caches: every call writes its whole width, so the last one may reach beyond the context."""
    return -(-(models.context + prefill_rows(models)) // alignment) * alignment
