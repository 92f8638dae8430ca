"""ONNX Runtime: one target graph of any width, and the drafter's inject and draft graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dflash_compile.export.families import family_of
from dflash_compile.export.tracing.graph import OWNERS, Graph, Owner
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord

from ..graphs import portable
from ..graphs.bind import bind, check_weight_shapes, size_of
from ..graphs.lowered import Lowered
from ..graphs.smoke_test import check_engine, importable
from ..manifest_records import graph_record, ringed
from ..pair_sizes import Models
from ..progress import Note, Progress
from . import lower as onnxruntime
from .expert_weights import expert_blocks, form_of
from .hessians import Hessians
from .options import Options
from .precision import Precision, precision_of
from .widths import widest

__all__ = ["Options", "prepare", "requires"]

_MINIMUM = "1.31.0"
"""the first with GroupQueryAttention that looks both ways"""
_EXACT_WIDTH = 2
"""one row takes a matrix-vector kernel that rounds otherwise; every width from two on gives the same bits"""


@dataclass(frozen=True)
class _Engine:
    owner: Owner
    lowered: Lowered

    @property
    def file(self) -> str:
        return f"{self.owner}/{self.lowered.signature.role}.onnx"

    @property
    def signature(self) -> Signature:
        return self.lowered.signature


@dataclass(frozen=True)
class _Prepared:
    models: Models
    options: Options
    engines: tuple[_Engine, ...]
    hessians: Hessians | None

    @property
    def bytes(self) -> int:
        return sum(size_of(engine.lowered) for engine in self.engines)

    @property
    def measured(self) -> list[MeasuredRecord]:
        return []

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        done, step, total = 0, "binding weights", self.bytes

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(step, done, total)

        def layer(number: int, count: int) -> None:
            nonlocal step
            step = f"calibrating and binding layer {number + 1} of {count}"
            advance(0)

        if self.hessians is not None:
            for engine in self.engines:
                check_weight_shapes(engine.lowered, self.models.sources)
            self.hessians.report = layer
        for engine in self.engines:
            path = directory / engine.file
            path.parent.mkdir(exist_ok=True)
            bind(engine.lowered, self.models.sources, path.parent, path.name, advance)
            if self.hessians is not None and engine.owner == "target":
                self.hessians.release()
                step = "binding weights"
            records[engine.owner].append(
                ringed(graph_record(engine.signature, engine.file), self.models.context, widest(self.models.block))
            )
        return records

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        if (form := _experts(self.models, self.options)) is not None:
            note(f"mixtures of experts: {form}")
            if self.hessians is not None:
                note("--calibrate: the weights of experts are rounded on their own all the same")
        if not importable():
            note("onnxruntime is not installed here: the engines were written but not tried")
            return
        for number, engine in enumerate(self.engines):
            progress("trying the engines", number, len(self.engines))
            check_engine(directory / engine.file, engine.signature)


def requires(_models: Models, _options: Options) -> RequirementRecord:
    """What the engines need of a machine."""
    return RequirementRecord(
        backend="onnxruntime",
        package="onnxruntime",
        minimum=_MINIMUM,
        built_with=_built_with(),
        exact_width=_EXACT_WIDTH,
    )


def prepare(models: Models, options: Options, progress: Progress, owners: Collection[Owner] = OWNERS) -> _Prepared:
    """Trace and lower target, inject and draft, as far as they belong to `owners`, with free row counts."""
    target, context, wide = models.target.spec, models.context, widest(models.block)
    sparse = not options.portable and expert_blocks(models.target.config, precision_of(options.precision)) is not None
    embeds = family_of(target.family).multimodal
    traces: tuple[tuple[Owner, Callable[[], Graph]], ...] = (
        (
            "target",
            lambda: trace_target(
                models.target, models.pairing.drafter.taps, context, widest=wide, sparse=sparse, embeds=embeds
            ),
        ),
        ("drafter", lambda: trace_inject(models.drafter, target, context, widest=wide)),
        ("drafter", lambda: trace_draft(models.drafter, target, context, refine=options.refine, widest=wide)),
    )
    wanted = [(owner, trace) for owner, trace in traces if owner in owners]
    engines: list[_Engine] = []
    hessians = (
        Hessians(models.target, options.calibrate) if options.calibrate is not None and "target" in owners else None
    )
    for owner, trace in wanted:
        progress("tracing and lowering", len(engines), len(wanted))
        lower = (
            portable.lower
            if options.portable
            else partial(onnxruntime.lower, precision=_precision(options, owner, hessians))
        )
        engines.append(_Engine(owner, lower(trace())))
    return _Prepared(models, options, tuple(engines), hessians)


def _precision(options: Options, owner: Owner, hessians: Hessians | None) -> Precision:
    return replace(precision_of(options.precision_for(owner)), group=options.group, hessians=hessians)


def _experts(models: Models, options: Options) -> str | None:
    """The form that mixtures of experts take here, in words."""
    spec = models.target.spec
    return form_of(
        spec.experts,
        spec.experts_used,
        expert_blocks(models.target.config, precision_of(options.precision)),
    )


def _built_with() -> str:
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return _MINIMUM
