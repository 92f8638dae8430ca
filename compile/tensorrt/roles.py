"""The engines of a bundle: which roles at which widths, for which architectures, each lowered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
from msgspec.structs import replace

from dflash_compile.export.tracing.graph import OWNERS, Graph, Owner
from dflash_compile.export.tracing.signature import (
    Signature,
    block_signature,
    inject_signature,
    of_rows,
    prefill_signature,
    verify_signature,
    with_cache_dtype,
)
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target
from dflash_compile.runtime.bundle.manifest import GraphRecord, PlanRecord

from ..graphs.edit import nodes
from ..graphs.lowered import Lowered
from ..graphs.onnx_graph import SemanticModel, to_onnx
from ..graphs.standard import SINKS
from ..manifest_records import graph_record
from ..pair_sizes import Models
from ..progress import Progress
from .functions import ATTENTION
from .lower import Form, Ports, lower
from .options import Options
from .ports import draft_ports, prefill_ports, verify_ports
from .precisions import BF16, PRECISIONS, Precision

CHUNK = 64
"""rows of a prefill"""


@dataclass(frozen=True)
class Engine:
    """One lowered graph and the architectures it is compiled for."""

    owner: Owner
    widths: tuple[int, ...]
    """row counts it is compiled for, widest first; where there are several, each is a profile of one engine, and they
    share its weights"""
    lowered: Lowered
    folds: bool
    architectures: tuple[str, ...]
    split: int
    """layers whose attention is written out, because it has sinks"""
    runs_on_cpu: bool
    """whether ONNX Runtime's CPU kernels know its dtypes"""

    @property
    def signature(self) -> Signature:
        return self.lowered.signature

    @property
    def rows(self) -> int:
        """The widest."""
        return self.widths[0]

    def records(self, arch: str, describe: Callable[[int], PlanRecord]) -> list[GraphRecord]:
        """How to call it, once for each width; `describe` says what the program of that number in the plan contains."""
        several, file = len(self.widths) > 1, self.file(arch)
        plans = [replace(describe(number), split_attention=self.split) for number in range(len(self.widths))]
        return [
            graph_record(
                of_rows(self.signature, rows), file, rows, arch=arch, plan=plan, profile=number if several else None
            )
            for number, (rows, plan) in enumerate(zip(self.widths, plans, strict=True))
        ]

    def profiles(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """For each width the shapes of the inputs that depend on it; none where there is one width."""
        if len(self.widths) == 1:
            return ()
        free = [port for port in self.signature.inputs if not all(isinstance(size, int) for size in port.shape)]
        return tuple(
            {port.name: tuple(rows if isinstance(size, str) else size for size in port.shape) for port in free}
            for rows in self.widths
        )

    @property
    def cache_shape(self) -> tuple[int, ...]:
        """Of K and of V of every layer."""
        (port,) = {
            port.shape: port for port in self.signature.inputs if port.name in dict(self.signature.caches)
        }.values()
        return tuple(size for size in port.shape if isinstance(size, int))

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.signature.role}[{','.join(map(str, self.widths))}]"

    def file(self, arch: str) -> str:
        """Of its plan, relative to the bundle."""
        return f"{self.owner}/{self.signature.role}-{'-'.join(map(str, self.widths))}.{arch}.plan"


@dataclass(frozen=True)
class Role:
    """One graph of a bundle, before it is traced."""

    name: str
    owner: Owner
    widths: tuple[int, ...]
    trace: Callable[[], Graph]
    signature: Callable[[Precision], Signature]
    ports: Ports = lambda _: None

    @property
    def rows(self) -> int:
        """The widest."""
        return self.widths[0]


@dataclass(frozen=True)
class Traced:
    """A role's graph before any architecture or precision is chosen."""

    role: Role
    semantic: SemanticModel


def cache_rows(context: int) -> int:
    """Rows of the caches: every call writes its whole width, so the last one may reach beyond the context."""
    return -(-(context + CHUNK) // CHUNK) * CHUNK


def trace_all(roles: Sequence[Role], progress: Progress) -> tuple[Traced, ...]:
    """Every role, traced once, whatever the architectures and precisions."""
    traced: list[Traced] = []
    for number, role in enumerate(roles):
        progress("tracing", number, len(roles))
        traced.append(Traced(role, to_onnx(role.trace())))
    return tuple(traced)


def lower_all(traced: Collection[Traced], options: Options) -> tuple[Engine, ...]:
    """Every engine: each role lowered once for each kind of architecture."""
    engines: list[Engine] = []
    for role, semantic in ((one.role, one.semantic) for one in traced):
        precision = PRECISIONS[options.precision_for(role.owner)]
        for folds in (False, True):
            names = tuple(architecture.name for architecture in options.architectures if architecture.folds == folds)
            if names:
                lowered = lower(semantic.copy(), Form(precision, folds), role.signature(precision), role.ports)
                split = sum(1 for _ in nodes(semantic.model, SINKS))
                engines.append(
                    Engine(
                        role.owner,
                        role.widths,
                        lowered,
                        folds,
                        names,
                        split,
                        runs_on_cpu=_runs_on_cpu(lowered, precision),
                    )
                )
    return tuple(engines)


def _runs_on_cpu(lowered: Lowered, precision: Precision) -> bool:
    return precision.compute != BF16 and all(
        payload.stored.dtype != ir.DataType.FLOAT4E2M1 for payload in lowered.payloads.values()
    )


def attention_count(model: ir.Model) -> int:
    """Layers that attend."""
    return sum(node.op_type == ATTENTION for node in model.graph)


def roles_of(models: Models, owners: Collection[Owner] = OWNERS, widths: Collection[int] = ()) -> list[Role]:
    """The graphs of the models in `owners`; verify at the block's width and at `widths`."""
    target, drafter, length, block = models.target.spec, models.drafter.spec, cache_rows(models.context), models.block
    wide = len(drafter.taps) * target.hidden
    cached = (target.layers, target.kv_heads, target.head_dim, length)
    drafted = (drafter.layers, drafter.kv_heads, drafter.head_dim, length)
    ids = None if models.drafter.vocabulary is None else models.drafter.vocabulary.ids

    def inject(rows: int) -> Role:
        signature = inject_signature(*drafted, wide, rows)
        return Role(
            "inject",
            "drafter",
            (rows,),
            lambda: trace_inject(models.drafter, target, length, rows),
            lambda p: with_cache_dtype(signature, p.cache_dtype),
        )

    def traced(rows: int | None, picked: int | None) -> Callable[[], Graph]:
        return lambda: trace_target(models.target, drafter.taps, length, rows, picked)

    verified = tuple(sorted({block, *widths}, reverse=True))
    fixed = block if len(verified) == 1 else None
    roles = [
        Role(
            "prefill",
            "target",
            (CHUNK,),
            traced(CHUNK, 1),
            lambda p: prefill_signature(*cached, wide, CHUNK, p.cache_dtype),
            prefill_ports,
        ),
        Role(
            "verify",
            "target",
            verified,
            traced(fixed, fixed),
            lambda p: verify_signature(*cached, wide, fixed or "rows", p.cache_dtype),
            partial(verify_ports, rows=block),
        ),
        Role(
            "decode",
            "target",
            (1,),
            traced(1, 1),
            lambda p: verify_signature(*cached, wide, 1, p.cache_dtype, "decode"),
            partial(verify_ports, rows=1),
        ),
        inject(CHUNK),
        inject(block),
        Role(
            "draft",
            "drafter",
            (block,),
            lambda: trace_draft(models.drafter, target, length, block),
            lambda p: block_signature(*drafted, block, p.cache_dtype),
            partial(draft_ports, rows=block, mask_id=drafter.mask_id, ids=ids),
        ),
    ]
    return [role for role in roles if role.owner in owners]
