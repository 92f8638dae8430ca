"""What a build for ONNX Runtime would hold and need in memory, from configurations alone.

No weight is read and none has to be there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dflash_compile.export.outline import TargetOutline
from dflash_compile.export.pairing import check_specs
from dflash_compile.export.spec import DrafterSpec
from dflash_compile.export.tracing.signature import Signature, draft_signature, inject_signature, target_signature
from dflash_compile.export.tracing.windows import cache_rows, draft_cache_rows
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS
from dflash_compile.runtime.errors import UsageError

from ..memory_estimate import ContextBytes, MemoryEstimate, RoleRows, WeightBytes
from .expert_weights import form_of
from .precision import PRECISIONS
from .weight_sizes import drafter_bytes, sparse_blocks, target_bytes
from .widths import widest

_FLOAT = 4
"""bytes"""


def estimate(
    target: TargetOutline, drafter: DrafterSpec | None, contexts: Sequence[int], block: int | None = None
) -> MemoryEstimate:
    """The estimate of a pair, or of a target alone, for each of `contexts`.

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
    return MemoryEstimate(
        target,
        drafter,
        rows,
        _forms(target),
        _roles(drafter, rows),
        tuple(
            WeightBytes(
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


def _needs(target: TargetOutline, drafter: DrafterSpec | None, context: int, block: int) -> ContextBytes:
    spec = target.spec
    if context > min(spec.max_positions, spec.max_positions if drafter is None else drafter.max_positions):
        return ContextBytes(context, None, None, None)
    lengths = cache_rows(target.windows, context, widest(block))
    tables = table_bytes(target.rotary_kinds, context, spec.head_dim)
    cache = _cache_bytes(target_signature(spec.layers, spec.kv_heads, spec.head_dim, lengths, spec.vocab, 0))
    full = _cache_bytes(target_signature(spec.layers, spec.kv_heads, spec.head_dim, context, spec.vocab, 0))
    if drafter is None:
        return ContextBytes(context, cache, None, tables, sum(rows < context for rows in lengths), full)
    drafted = draft_cache_rows(drafter, context, widest(block))
    sizes = (drafter.layers, drafter.kv_heads, drafter.head_dim)
    draft_cache = _cache_bytes(draft_signature(*sizes, drafted, spec.vocab))
    full += _cache_bytes(inject_signature(*sizes, context, 0))
    tables += 2 * table_bytes(1, context, drafter.head_dim)
    return ContextBytes(context, cache, draft_cache, tables, sum(rows < context for rows in (*lengths, *drafted)), full)


def _buffers(target: TargetOutline, drafter: DrafterSpec | None, block: int) -> int:
    """Logits of the widest call and, with a drafter, its taps and the logits of a draft."""
    spec, rows = target.spec, widest(block)
    drafted = (
        0
        if drafter is None
        else rows * len(drafter.taps) * spec.hidden + (block - 1) * (drafter.draft_vocab or spec.vocab)
    )
    return _FLOAT * (rows * spec.vocab + drafted)


def _roles(drafter: DrafterSpec | None, block: int) -> tuple[RoleRows, ...]:
    verify = f"{block}, or fewer" if drafter is not None else "–"
    target = [
        RoleRows("prefill", "target", f"up to {PREFILL_ROWS}"),
        RoleRows("decode", "target", "2"),
        *([RoleRows("verify", "target", verify)] if drafter is not None else []),
    ]
    drafts = (
        []
        if drafter is None
        else [
            RoleRows("inject", "drafter", f"up to {widest(block)}"),
            RoleRows("draft", "drafter", f"{block}, or fewer"),
        ]
    )
    return (*target, *drafts)


def _cache_bytes(signature: Signature) -> int:
    """Of all caches of a graph, in float32."""
    taken = {name for name, _ in signature.caches}
    return sum(math.prod(int(size) for size in port.shape) * _FLOAT for port in signature.inputs if port.name in taken)


def table_bytes(kinds: int, context: int, head_dim: int) -> int:
    """Of the rotary tables of one engine: cosine and sine for each position and pair of dimensions."""
    return kinds * 2 * context * (head_dim // 2) * _FLOAT
