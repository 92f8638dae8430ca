"""A plan: what a build for ONNX Runtime would hold and need in memory, from configurations alone.

No weight is read and none has to be there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_compile.export.outline import TargetOutline
from dflash_compile.export.pairing import check_specs
from dflash_compile.export.spec import DrafterSpec
from dflash_compile.export.tracing.signature import draft_signature, inject_signature, target_signature
from dflash_compile.export.tracing.windows import cache_rows, draft_cache_rows
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS
from dflash_compile.runtime.errors import UsageError

from .expert_weights import form_of
from .precision import PRECISIONS
from .weight_sizes import FLOAT, cache_bytes, drafter_bytes, sparse_blocks, table_bytes, target_bytes
from .widths import widest

WORKING = 1 << 29
"""bytes for activations, tokenizer and Python itself, beside what is counted"""


@dataclass(frozen=True)
class Weights:
    """Bytes of weights at one precision, as they lie in the engines' files."""

    precision: str
    target: int
    drafter: int


@dataclass(frozen=True)
class Needs:
    """What depends on the context. Bytes; None where the models do not reach so far."""

    context: int
    target_cache: int | None
    drafter_cache: int | None
    tables: int | None
    """rotary tables of all engines"""
    rings: int = 0
    """layers of both models whose caches are rings"""
    full_cache: int | None = None
    """both models' caches if every layer kept the whole context"""


@dataclass(frozen=True)
class Role:
    """A graph of the build, and the rows it is called with."""

    role: str
    engine: str
    rows: str


@dataclass(frozen=True)
class Plan:
    """Sizes of a build of one pair, or of a target alone."""

    target: TargetOutline
    drafter: DrafterSpec | None
    block: int
    experts: Mapping[str, str]
    """how mixtures of experts run, by precision; empty where there are none"""
    roles: tuple[Role, ...]
    weights: tuple[Weights, ...]
    needs: tuple[Needs, ...]
    buffers: int
    """bytes the runtime reserves for logits and taps"""

    def total(self, weights: Weights, needs: Needs) -> int | None:
        """Bytes that a session of these takes, or None where the models do not reach so far."""
        if needs.target_cache is None:
            return None
        return (
            weights.target
            + weights.drafter
            + needs.target_cache
            + (needs.drafter_cache or 0)
            + (needs.tables or 0)
            + self.buffers
            + WORKING
        )


def plan(target: TargetOutline, drafter: DrafterSpec | None, contexts: Sequence[int], block: int | None = None) -> Plan:
    """The plan of a pair for each of `contexts`.

    Raises `PairingError` for a drafter of another target, `UsageError` for sizes that cannot be.
    """
    if drafter is not None:
        check_specs(target.spec, drafter, drafter.name)
    rows = block or (drafter.block if drafter is not None else 16)
    if drafter is not None and not 2 <= rows <= drafter.block:
        raise UsageError(
            f"a block of {rows} rows",
            where="--block",
            why=f"the drafter was trained for {drafter.block}",
            fix="choose 2 to that many",
        )
    if not contexts or any(context <= rows for context in contexts):
        raise UsageError(
            f"contexts {list(contexts)}",
            where="--context",
            why=f"one block alone is {rows} rows",
            fix="give lengths above that",
        )
    spec = target.spec
    return Plan(
        target,
        drafter,
        rows,
        _forms(target),
        _roles(drafter, rows),
        tuple(
            Weights(
                name, target_bytes(target, precision), 0 if drafter is None else drafter_bytes(drafter, spec, precision)
            )
            for name, precision in PRECISIONS.items()
        ),
        tuple(_needs(target, drafter, context, rows) for context in contexts),
        _buffers(target, drafter, rows),
    )


def _forms(target: TargetOutline) -> dict[str, str]:
    spec = target.spec
    found = {
        name: form_of(spec.experts, spec.experts_used, sparse_blocks(target, precision))
        for name, precision in PRECISIONS.items()
    }
    return {name: form for name, form in found.items() if form}


def _needs(target: TargetOutline, drafter: DrafterSpec | None, context: int, block: int) -> Needs:
    spec = target.spec
    if context > min(spec.max_positions, spec.max_positions if drafter is None else drafter.max_positions):
        return Needs(context, None, None, None)
    lengths = cache_rows(target.windows, context, widest(block))
    tables = table_bytes(target.rotary_kinds, context, spec.head_dim)
    cache = cache_bytes(target_signature(spec.layers, spec.kv_heads, spec.head_dim, lengths, spec.vocab, 0))
    full = cache_bytes(target_signature(spec.layers, spec.kv_heads, spec.head_dim, context, spec.vocab, 0))
    if drafter is None:
        return Needs(context, cache, None, tables, sum(rows < context for rows in lengths), full)
    drafted = draft_cache_rows(drafter, context, widest(block))
    sizes = (drafter.layers, drafter.kv_heads, drafter.head_dim)
    draft_cache = cache_bytes(draft_signature(*sizes, drafted, spec.vocab))
    full += cache_bytes(inject_signature(*sizes, context, 0))
    tables += 2 * table_bytes(1, context, drafter.head_dim)
    return Needs(context, cache, draft_cache, tables, sum(rows < context for rows in (*lengths, *drafted)), full)


def _buffers(target: TargetOutline, drafter: DrafterSpec | None, block: int) -> int:
    """Logits of the widest call and, with a drafter, its taps and the logits of a draft."""
    spec, rows = target.spec, widest(block)
    drafted = (
        0
        if drafter is None
        else rows * len(drafter.taps) * spec.hidden + (block - 1) * (drafter.draft_vocab or spec.vocab)
    )
    return FLOAT * (rows * spec.vocab + drafted)


def _roles(drafter: DrafterSpec | None, block: int) -> tuple[Role, ...]:
    verify = f"{block}, or fewer" if drafter is not None else "–"
    target = [
        Role("prefill", "target", f"up to {PREFILL_ROWS}"),
        Role("decode", "target", "2"),
        *([Role("verify", "target", verify)] if drafter is not None else []),
    ]
    drafts = (
        []
        if drafter is None
        else [Role("inject", "drafter", f"up to {widest(block)}"), Role("draft", "drafter", f"{block}, or fewer")]
    )
    return (*target, *drafts)
