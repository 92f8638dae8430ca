"""Bundles of tiny pairs for Apple's runtimes, built once for each test process, and Core ML played by the evaluator of saved packages."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.mil.evaluate import Evaluator

CONTEXT, BLOCK = 96, 4


def write_pair(folder: Path, family: str) -> tuple[Path, Path]:
    """A target of two layers and a drafter of one."""
    target = models.write_target(folder / "target", family, num_hidden_layers=2)
    return target, models.write_drafter(folder / "drafter", target, layers=1, block=BLOCK, taps=(0,))


def built(folder: Path, family: str, backend: str, precision: str) -> Path:
    """The bundle of `write_pair`'s pair in `folder`, which is written where it is missing."""
    pair = (folder / "target", folder / "drafter") if (folder / "target").is_dir() else write_pair(folder, family)
    return build(*pair, folder / f"{backend}-{precision}", BuildOptions(backend=backend, precision=precision, context=CONTEXT))


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

    def predict(self, feeds: Mapping[str, Any], state: dict[str, Any]) -> dict[str, Any]:
        return self.evaluator.run(self.function, feeds, state)


class Library:
    """coremltools as a Mac has it."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.ComputeUnit = SimpleNamespace(CPU_AND_GPU="CPU_AND_GPU", CPU_AND_NE="CPU_AND_NE")
        proxy = SimpleNamespace(_MLModelProxy=object())
        self.models = SimpleNamespace(model=proxy, CompiledMLModel=Compiled, utils=SimpleNamespace(compile_model=self.compile))

    def compile(self, package: str, place: str) -> None:
        self.compiled.append(package)
        shutil.copytree(package, place)


def bundle_once(root: Path, family: str, backend: str, precision: str) -> Path:
    """`built`, once for everybody who has the folder `root`: test processes that run side by side wait for the one that builds."""
    from filelock import FileLock

    folder = root / family
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"{family}.lock"):
        done = folder / f"{backend}-{precision}"
        return done if done.is_dir() else built(folder, family, backend, precision)
