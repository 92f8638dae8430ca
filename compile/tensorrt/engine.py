"""One engine of a bundle: a lowered graph, the widths and architectures it is compiled for, and its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from dflash_compile.export.tracing.graph import Owner
from dflash_compile.export.tracing.signature import Signature, of_rows
from dflash_compile.runtime.bundle.manifest import GraphRecord, PlanRecord

from ..graphs.lowered import Lowered
from ..manifest_records import graph_record


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
