"""TensorRT's graphs: which widths share an engine, the ports each role shows its host, and each lowered.

Greedy graphs give token ids, never logits: acceptance is inside verify, and draft gives the block to verify.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.export.tracing.signature import (
    Signature,
    block_signature,
    inject_signature,
    prefill_signature,
    verify_signature,
    with_cache_dtype,
)

from ..graphs.edit import nodes
from ..graphs.lowered import Lowered
from ..graphs.onnx_graph import SemanticModel, to_onnx
from ..graphs.roles import Role, cache_length, static_roles
from ..graphs.standard import SINKS
from ..pair_sizes import Models
from ..progress import Progress
from .engine import Engine
from .functions import ATTENTION
from .lower import Form, Ports, lower
from .options import Options
from .ports import draft_ports, prefill_ports, verify_ports
from .precisions import BF16, PRECISIONS, Precision


def roles_of(models: Models, owners: Collection[Owner] = OWNERS, widths: Collection[int] = ()) -> tuple[Role, ...]:
    """The graphs of the models in `owners`; one engine verifies at the block's width and at `widths`."""
    verified = tuple(sorted({models.block, *widths}, reverse=True))
    return static_roles(models, [verified], [models.block], owners)


def cache_rows(models: Models) -> int:
    """Rows of the caches."""
    return cache_length(models, 64)


@dataclass(frozen=True)
class Traced:
    """A role's graph before any architecture or precision is chosen."""

    role: Role
    models: Models
    semantic: SemanticModel

    def signature(self, precision: Precision) -> Signature:
        """What the engine takes and gives."""
        role, dtype, length = self.role, precision.cache_dtype, cache_rows(self.models)
        target, drafter = self.models.target.spec, self.models.drafter.spec
        taps = len(drafter.taps) * target.hidden
        spec = target if role.owner == "target" else drafter
        cached = (spec.layers, spec.kv_heads, spec.head_dim, length)
        match role.name:
            case "prefill":
                return prefill_signature(*cached, taps, role.rows, dtype)
            case "inject":
                return with_cache_dtype(inject_signature(*cached, taps, role.rows), dtype)
            case "draft":
                return block_signature(*cached, role.rows, dtype)
        rows = role.rows if len(role.widths) == 1 else "rows"
        return verify_signature(*cached, taps, rows, dtype, "decode" if role.name == "decode" else "verify")

    @property
    def ports(self) -> Ports:
        """What makes them of the semantic graph's."""
        drafter, rows = self.models.drafter, self.role.rows
        ids = None if drafter.vocabulary is None else drafter.vocabulary.ids
        match self.role.name:
            case "prefill":
                return prefill_ports
            case "inject":
                return lambda _: None
            case "draft":
                return partial(draft_ports, rows=rows, mask_id=drafter.spec.mask_id, ids=ids)
        return partial(verify_ports, rows=rows)


def trace_all(models: Models, roles: Sequence[Role], progress: Progress) -> tuple[Traced, ...]:
    """Every role, traced once, whatever the architectures and precisions."""
    traced: list[Traced] = []
    for number, role in enumerate(roles):
        progress("tracing", number, len(roles))
        traced.append(Traced(role, models, to_onnx(role.trace(models, cache_rows(models)))))
    return tuple(traced)


def lower_all(traced: Collection[Traced], options: Options) -> tuple[Engine, ...]:
    """Every engine: each role lowered once for each kind of architecture."""
    engines: list[Engine] = []
    for one in traced:
        role, semantic = one.role, one.semantic
        precision = PRECISIONS[options.precision_for(role.owner)]
        for folds in (False, True):
            names = tuple(architecture.name for architecture in options.architectures if architecture.folds == folds)
            if names:
                lowered = lower(semantic.copy(), Form(precision, folds), one.signature(precision), one.ports)
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
        binding.stored.dtype != ir.DataType.FLOAT4E2M1 for binding in lowered.bindings.values()
    )


def attention_count(model: ir.Model) -> int:
    """Layers that attend."""
    return sum(node.op_type == ATTENTION for node in model.graph)
