"""TensorRT: one engine for each part of a model and architecture, its widths profiles of it, with weights bound.

Built without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import onnx_ir as ir

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord

from ..graphs.bind import bind, size_of, take_over
from ..graphs.lowered import Lowered
from ..graphs.smoke_test import check_engine, importable
from ..pair_sizes import Models
from ..progress import Note, Progress
from .builder import Built, Request, build_plan
from .commit_kernel import write_commit_kernel
from .engine import Engine
from .engine_info import inspect_plan
from .library import Flavour, check_device, choose_flavour
from .lint import check_lint
from .loop_kernel import write_loop_kernels
from .options import Options
from .roles import roles_of
from .tables import write_tables
from .traced import attention_count, lower_all, trace_all

__all__ = ["Options", "prepare", "requires"]


@dataclass(frozen=True)
class Compilation:
    """Lowered engines of one pair, to be bound, tried and compiled."""

    models: Models
    engines: tuple[Engine, ...]
    flavour: Flavour
    measured: list[MeasuredRecord] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Every plan, and the largest ONNX file, which stands beside them while it is compiled."""
        sizes = [size_of(engine.lowered) for engine in self.engines]
        plans = sum(size * len(engine.architectures) for size, engine in zip(sizes, self.engines, strict=True))
        tables = {table.name: table.bytes for engine in self.engines for table in engine.tables}
        return plans + sum(tables.values()) + max([*sizes, sum(tables.values())])

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        work = directory / "onnx"
        self._write_tables(work, directory, progress)
        for _, forms in groupby(self.engines, lambda engine: (engine.owner, engine.signature.role)):
            work.mkdir()
            encoded: ir.Model | None = None
            for engine in forms:
                # Forms of one role differ in how they attend: what the first encoded serves the others.
                lowered = engine.lowered if encoded is None else take_over(engine.lowered, encoded)
                onnx = self._bind(engine, lowered, work / ("folded.onnx" if engine.folds else "graph.onnx"), progress)
                encoded = engine.lowered.model
                (directory / engine.owner).mkdir(exist_ok=True)
                for arch in engine.architectures:
                    records[engine.owner] += self._compile(engine, arch, onnx, directory, progress)
            shutil.rmtree(work)
        for arch in sorted({record.arch for record in records["drafter"] if record.arch}):
            write_commit_kernel(arch, directory / "drafter" / f"commit.{arch}.cubin")
            write_loop_kernels(arch, directory / "drafter" / f"loop.{arch}.cubin")
        return records

    def _write_tables(self, work: Path, directory: Path, progress: Progress) -> None:
        tables = {table.name: table for engine in self.engines for table in engine.tables}
        if tables:
            work.mkdir()
            counter = _Counter(progress, "binding the tables", sum(table.bytes for table in tables.values()))
            write_tables(list(tables.values()), self.models.sources, work, directory, counter)
            shutil.rmtree(work)

    def _bind(self, engine: Engine, lowered: Lowered, onnx: Path, progress: Progress) -> Path:
        counter = _Counter(progress, f"binding {engine.title}", size_of(lowered))
        bind(lowered, self.models.sources, onnx.parent, onnx.name, counter)
        if engine.runs_on_cpu and importable():
            progress(f"trying {engine.title} in ONNX Runtime")
            tables = sum(table.bytes for table in engine.tables)
            check_engine(onnx, engine.signature, size_of(engine.lowered) + tables)
        return onnx

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        note("engines for GPUs were compiled and their networks checked; running them needs such a GPU")
        if not importable():
            note("onnxruntime is not installed here: the graphs were not tried before they were compiled")
        elif untried := dict.fromkeys(engine.title for engine in self.engines if not engine.runs_on_cpu):
            note(
                "ONNX Runtime has no CPU kernels for what these graphs are stored or computed in, so that they were"
                f" not tried: {', '.join(untried)}"
            )

    def _compile(self, engine: Engine, arch: str, onnx: Path, directory: Path, progress: Progress) -> list[GraphRecord]:
        file, step = engine.file(arch), f"compiling {engine.title} for {arch}"
        request = Request(
            module=self.flavour.module,
            onnx=str(onnx),
            plan=str(directory / file),
            arch=arch.upper(),
            caches=engine.signature.caches,
            attentions=attention_count(engine.lowered.model),
            mark_queries=not engine.folds,
            profiles=engine.profiles(),
        )
        progress(step)
        built = build_plan(request, lambda _phase, done, total: progress(step, done, total))
        self.measured.extend(_figures(engine, arch, built, self.flavour))
        return engine.records(arch, lambda number: inspect_plan(directory / file, engine.cache_shape, number))


def requires(models: Models, options: Options) -> RequirementRecord:
    """What the engines need of a machine: the very version that compiled them.

    Plain decoding uses the widest verify, unless a narrower one is found to round alike on the machine: each width is a
    program of its own.
    """
    flavour = choose_flavour(options.flavour)
    version = flavour.installed or flavour.supported
    return RequirementRecord(
        backend="tensorrt",
        package=flavour.package,
        minimum=version,
        maximum=version,
        built_with=version,
        exact_width=models.block,
    )


def prepare(models: Models, options: Options, progress: Progress, owners: Collection[Owner] = OWNERS) -> Compilation:
    """Trace every engine's graph, lower it for each kind of architecture, and refuse what TensorRT would
    misread.
    """
    flavour = choose_flavour(options.flavour)
    check_device(flavour, options.arch)
    engines = lower_all(trace_all(models, roles_of(models, owners, options.widths), progress), options)
    for engine in engines:
        check_lint(engine.lowered.model, engine.signature.role, free=len(engine.widths) > 1)
    return Compilation(models, engines, flavour)


class _Counter:
    """Adds up what was written."""

    def __init__(self, progress: Progress, step: str, total: int) -> None:
        self.progress, self.step, self.total, self.done = progress, step, total, 0

    def __call__(self, count: int) -> None:
        self.done += count
        self.progress(self.step, self.done, self.total)


def _figures(engine: Engine, arch: str, built: Built, flavour: Flavour) -> list[MeasuredRecord]:
    name, how = f"{engine.title}, {arch}", f"{flavour.package} {flavour.installed}"
    time = MeasuredRecord(name=f"{name}: build", value=round(built.seconds, 2), unit="s", how=how)
    if built.peak_bytes is None:
        return [time]
    return [
        time,
        MeasuredRecord(name=f"{name}: peak memory", value=round(built.peak_bytes / 2**20), unit="MiB", how=how),
    ]
