"""TensorRT: one engine for each architecture, role and width, with weights bound and every size fixed.

Built without a GPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord

from ..graphs.bind import bind, size_of
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
from .roles import attention_count, lower_all, roles_of, trace_all

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
        return sum(size * len(engine.architectures) for size, engine in zip(sizes, self.engines, strict=True)) + max(
            sizes, default=0
        )

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        work = directory / "onnx"
        for engine in self.engines:
            work.mkdir()
            bind(
                engine.lowered,
                self.models.sources,
                work,
                "graph.onnx",
                _Counter(progress, f"binding {engine.title}", size_of(engine.lowered)),
            )
            if engine.runs_on_cpu and importable():
                progress(f"trying {engine.title} in ONNX Runtime")
                check_engine(work / "graph.onnx", engine.signature)
            (directory / engine.owner).mkdir(exist_ok=True)
            for arch in engine.architectures:
                records[engine.owner] += self._compile(engine, arch, work / "graph.onnx", directory, progress)
            shutil.rmtree(work)
            if engine.signature.role == "draft":
                for arch in engine.architectures:
                    write_commit_kernel(arch, directory / "drafter" / f"commit.{arch}.cubin")
                    write_loop_kernels(arch, directory / "drafter" / f"loop.{arch}.cubin")
        return records

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

    Plain decoding uses the widest verify: each width is an engine of its own, and no two need round alike.
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
    """Trace every role at its widths, lower it for each kind of architecture, and refuse what TensorRT would
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
