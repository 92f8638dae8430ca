"""Bundles of tiny pairs for Apple's runtimes, built once for each test process, and Core ML played by the evaluator of
saved packages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import models

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.compile.coreml.package import MODEL

CONTEXT, BLOCK = 96, 4


DEEP = "deep-"
"""before the name of a family: a pair with layers enough to be cut"""
DEEP_LAYERS, DEEP_TAPS = 4, (1, 0)


def write_pair(folder: Path, family: str) -> tuple[Path, Path]:
    """A target of two layers and a drafter of one, or of `DEEP_LAYERS` and two."""
    deep = family.startswith(DEEP)
    target = models.write_target(
        folder / "target", family.removeprefix(DEEP), num_hidden_layers=DEEP_LAYERS if deep else 2
    )
    return target, models.write_drafter(
        folder / "drafter", target, layers=2 if deep else 1, block=BLOCK, taps=DEEP_TAPS if deep else (0,)
    )


def built(place: Path, family: str, backend: str, precision: str, policy: str | None, limit: str | None) -> Path:
    """The bundle `place` of `write_pair`'s pair beside it, which is written where it is missing.

    Heads are split, as large ones are. The converter does not look its program over after every pass, a third of the
    time: whole builds in tests/compile do, and what comes out here is run.
    """
    from coremltools.converters.mil.mil.program import Program

    from dflash_compile.compile.coreml import chunks, ops

    pair = (place.parent / "target", place.parent / "drafter")
    if not pair[0].is_dir():
        write_pair(place.parent, family)
    with (
        patch.object(Program, "validate"),
        patch.object(ops, "WIDEST", 128),
        patch.object(chunks, "LIMIT_BYTES", int(limit or chunks.LIMIT_BYTES)),
    ):
        own = {"cache_policy": policy}
        return build(*pair, place, BuildOptions(backend, precision, context=CONTEXT, engine=own))


class Compiled:
    """What coremltools' CompiledMLModel offers, on a folder that `compile_model` left."""

    _read: dict[str, Evaluator] = {}  # noqa: RUF012  (a package is read once, however many functions of it are loaded)

    def __init__(self, path: str, compute_units: str, function_name: str) -> None:
        if path not in self._read:
            self._read[path] = Evaluator(Path(path))
        self.evaluator, self.function, self.units = self._read[path], function_name, compute_units
        if function_name not in self.evaluator.functions:
            raise RuntimeError(f"no function {function_name}")

    def make_state(self) -> dict[str, Any]:
        return self.evaluator.new_state(self.function)

    def predict(self, feeds: Mapping[str, Any], state: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.evaluator.run(self.function, feeds, state)


class Library:
    """coremltools as a Mac has it."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.ComputeUnit = SimpleNamespace(CPU_AND_GPU="CPU_AND_GPU", CPU_AND_NE="CPU_AND_NE")
        proxy = SimpleNamespace(_MLModelProxy=object())
        self.models = SimpleNamespace(
            model=proxy, CompiledMLModel=Compiled, utils=SimpleNamespace(compile_model=self.compile)
        )

    def compile(self, package: str, place: str) -> None:
        self.compiled.append(package)
        shutil.copytree(package, place)


def bundle_once(
    root: Path, family: str, backend: str, precision: str, policy: str | None = None, limit: str | None = None
) -> Path:
    """`built`, with packages of at most `limit` bytes, once for everybody who has the folder `root`.

    Test processes that run side by side wait for the one that builds.
    """
    from filelock import FileLock

    folder = root / family
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{family}.lock"):
        done = folder / "-".join(filter(None, (backend, precision, policy, limit)))
        return done if done.is_dir() else built(done, family, backend, precision, policy, limit)


def rewritten(source: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    """A copy of the package whose functions `change` has edited."""
    from coremltools import proto

    shutil.copytree(source, folder / source.name)
    file, spec = folder / source.name / MODEL, proto.Model_pb2.Model()
    spec.ParseFromString(file.read_bytes())
    for function in spec.mlProgram.functions.values():
        change(next(iter(function.block_specializations.values())))
    file.write_bytes(spec.SerializeToString())
    return folder / source.name
