"""TensorRT's engines: what each computes, the widths it is compiled for, and how a bundle calls them.

The target is three engines, so that its table and its head are there once, for the drafter too:

    tokens ─▶ embed ─▶ body ─▶ head ─▶ tokens, accepted, …          anchor ─▶ embed ─▶ draft ─▶ head ─▶ block

A width is an optimisation profile of its engine: all of them share the weights.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dflash_compile.export.tracing.graph import OWNERS, Graph, Owner
from dflash_compile.export.tracing.trace import (
    shares_table,
    trace_draft,
    trace_embed,
    trace_head,
    trace_inject,
    trace_target,
)

from ..graphs.roles import cache_length, prefill_rows
from ..pair_sizes import Models

NARROWEST = 2
"""Rows of the narrowest verify. One row alone is computed by other kernels, for which TensorRT stores float16 weights
again in another order."""


@dataclass(frozen=True)
class Role:
    """One engine of a bundle, before it is traced."""

    name: str
    """embed, body, head, inject or draft"""
    owner: Owner
    calls: tuple[tuple[str, int], ...]
    """role and rows of each way to call it, as a bundle names them"""

    @property
    def widths(self) -> tuple[int, ...]:
        """Row counts it is compiled for, widest first."""
        return tuple(sorted({rows for _, rows in self.calls}, reverse=True))

    @property
    def rows(self) -> int:
        """The widest."""
        return self.widths[0]

    @property
    def attends(self) -> bool:
        """Whether its form depends on how an architecture attends."""
        return self.name in ("body", "draft")

    def trace(self, models: Models) -> Graph:
        """The semantic graph, of a free row count where there are several widths."""
        target, drafter, length = models.target, models.drafter, cache_rows(models)
        rows = self.rows if len(self.widths) == 1 else None
        match self.name:
            case "embed":
                return trace_embed(target, rows)
            case "body":
                return trace_target(target, drafter.spec.taps, length, rows, tables=False)
            case "head":
                return trace_head(target, rows)
            case "inject":
                return trace_inject(drafter, target.spec, length, rows)
        return trace_draft(drafter, target.spec, length, rows, tables=not shares_table(drafter.spec, target))


def roles_of(models: Models, owners: Collection[Owner] = OWNERS, widths: Collection[int] = ()) -> tuple[Role, ...]:
    """The engines of the models in `owners`; verify has the block's width, the narrowest, and `widths`."""
    chunk, verified = prefill_rows(models), sorted({models.block, NARROWEST, *widths}, reverse=True)
    verifies = [("verify", rows) for rows in verified]
    # One row is the anchor's, for the draft.
    embeds = [("embed", rows) for rows in sorted({chunk, *verified, 1}, reverse=True)]
    roles = (
        Role("embed", "target", tuple(embeds)),
        Role("body", "target", (("prefill", chunk), *verifies)),
        Role("head", "target", tuple(("head", rows) for rows in verified)),
        Role("inject", "drafter", tuple(("inject", rows) for rows in sorted({chunk, models.block}, reverse=True))),
        Role("draft", "drafter", (("draft", models.block),)),
    )
    return tuple(role for role in roles if role.owner in owners)


def cache_rows(models: Models) -> int:
    """Rows of the caches."""
    return cache_length(models, 64)
