"""Every engine's graph: traced once, lowered once for each kind of architecture."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir

from dflash_compile.export.tracing.signature import Signature, with_cache_dtype

from ..graphs.edit import nodes
from ..graphs.lowered import Lowered
from ..graphs.onnx_graph import SemanticModel, to_onnx
from ..graphs.standard import SINKS
from ..pair_sizes import Models
from ..progress import Progress
from .engine import Engine
from .functions import ATTENTION
from .lower import Form, Ports, lower
from .options import Options
from .ports import body_ports, draft_ports, head_ports, own_draft_ports
from .precisions import BF16, PRECISIONS, Precision
from .roles import Role
from .signatures import body_signature, draft_signature, embed_signature, head_signature
from .tables import Table, tables_of, with_tables


@dataclass(frozen=True)
class Traced:
    """A role's graph before any architecture or precision is chosen."""

    role: Role
    models: Models
    semantic: SemanticModel
    traced: Signature
    """of the graph as it was traced"""

    def tables(self, precision: Precision) -> tuple[Table, ...]:
        """The target's tables that it is given, in the target's `precision`."""
        return tables_of(self.models.target.spec, precision, self.semantic.weights)

    def signature(self, precision: Precision, tables: Sequence[Table]) -> Signature:
        """What the engine takes and gives."""
        return with_tables(self._signature(precision), tables)

    def _signature(self, precision: Precision) -> Signature:
        match self.role.name:
            case "embed":
                return embed_signature(self.traced)
            case "body":
                return body_signature(self.traced, precision.cache_dtype)
            case "head":
                return head_signature(self.traced)
            case "inject":
                return with_cache_dtype(self.traced, precision.cache_dtype)
        return draft_signature(self.traced, self.role.rows, precision.cache_dtype)

    @property
    def ports(self) -> Ports:
        """What makes them of the semantic graph's."""
        drafter, rows = self.models.drafter, self.role.rows
        match self.role.name:
            case "body":
                return body_ports
            case "head":
                return partial(head_ports, rows=rows)
            case "draft" if self.traced.outputs[0].name == "hidden":
                return draft_ports
            case "draft":
                ids = None if drafter.vocabulary is None else drafter.vocabulary.ids
                return partial(own_draft_ports, rows=rows, mask_id=drafter.spec.mask_id, ids=ids)
        return lambda _: None


def trace_all(models: Models, roles: Sequence[Role], progress: Progress) -> tuple[Traced, ...]:
    """Every role, traced once, whatever the architectures and precisions."""
    traced: list[Traced] = []
    for number, role in enumerate(roles):
        progress("tracing", number, len(roles))
        graph = role.trace(models)
        traced.append(Traced(role, models, to_onnx(graph), graph.signature))
    return tuple(traced)


def lower_all(traced: Collection[Traced], options: Options) -> tuple[Engine, ...]:
    """Every engine: those that attend once for each kind of architecture, one after the other, all others once."""
    return tuple(engine for one in traced for engine in _forms(one, options))


def _forms(one: Traced, options: Options) -> list[Engine]:
    role, semantic, found = one.role, one.semantic, options.architectures
    precision = PRECISIONS[options.precision_for(role.owner)]
    kinds = [(folds, [a.name for a in found if a.folds == folds]) for folds in (False, True)]
    split = sum(1 for _ in nodes(semantic.model, SINKS))
    tables = one.tables(PRECISIONS[options.precision_for("target")])
    engines: list[Engine] = []
    for folds, names in kinds if role.attends else [(False, [a.name for a in found])]:
        if names:
            lowered = lower(
                semantic.copy(), Form(precision, folds, tables), one.signature(precision, tables), one.ports
            )
            on_cpu = _runs_on_cpu(lowered, precision)
            engines.append(Engine(role.owner, role.calls, lowered, folds, tuple(names), split, on_cpu, tables))
    return engines


def _runs_on_cpu(lowered: Lowered, precision: Precision) -> bool:
    return precision.compute != BF16 and all(
        binding.stored.dtype != ir.DataType.FLOAT4E2M1 for binding in lowered.bindings.values()
    )


def attention_count(model: ir.Model) -> int:
    """Layers that attend."""
    return sum(node.op_type == ATTENTION for node in model.graph)
