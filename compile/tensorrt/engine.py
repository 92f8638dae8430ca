"""One engine of a bundle: a lowered graph, the widths and architectures it is compiled for, and its records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from dflash_compile.export.tracing.graph import Owner
from dflash_compile.export.tracing.signature import Signature, of_rows
from dflash_compile.runtime.bundle.manifest import GraphRecord, PlanRecord

from ..graphs.lowered import Lowered
from ..manifest_records import graph_record
from .tables import Table


@dataclass(frozen=True)
class Engine:
    """One lowered graph and the architectures it is compiled for."""

    owner: Owner
    calls: tuple[tuple[str, int], ...]
    """role and rows of each way to call it"""
    lowered: Lowered
    folds: bool
    architectures: tuple[str, ...]
    split: int
    """layers whose attention is written out, because it has sinks"""
    runs_on_cpu: bool
    """whether ONNX Runtime's CPU kernels know its dtypes"""
    tables: tuple[Table, ...] = ()
    """those that it is given"""

    @property
    def signature(self) -> Signature:
        return self.lowered.signature

    @property
    def widths(self) -> tuple[int, ...]:
        """Row counts it is compiled for, widest first; where there are several, each is a profile of one engine, and
        they share its weights."""
        return tuple(sorted({rows for _, rows in self.calls}, reverse=True))

    @property
    def rows(self) -> int:
        """The widest."""
        return self.widths[0]

    def records(self, arch: str, describe: Callable[[int], PlanRecord]) -> list[GraphRecord]:
        """How to call it; `describe` says what the program of that number in the plan contains."""
        widths, file = self.widths, self.file(arch)
        plans = [replace(describe(number), split_attention=self.split) for number in range(len(widths))]
        return [
            graph_record(
                _as(of_rows(self.signature, rows), role),
                file,
                rows,
                arch=arch,
                weights={table.name: table.file for table in self.tables},
                plan=plans[number := widths.index(rows)],
                profile=number if len(widths) > 1 else None,
            )
            for role, rows in self.calls
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
    def cache_shape(self) -> tuple[int, ...] | None:
        """Of K and of V of every layer, None where it has none."""
        caches = dict(self.signature.caches)
        shapes = {port.shape for port in self.signature.inputs if port.name in caches}
        return next((tuple(size for size in shape if isinstance(size, int)) for shape in shapes), None)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.signature.role}[{','.join(map(str, self.widths))}]"

    def file(self, arch: str) -> str:
        """Of its plan, relative to the bundle."""
        return f"{self.owner}/{self.signature.role}.{arch}.plan"


def _as(signature: Signature, role: str) -> Signature:
    """`signature` under the name of `role`."""
    return dataclasses.replace(signature, role=role)
