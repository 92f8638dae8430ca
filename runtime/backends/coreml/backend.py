"""Engines on Core ML: multifunction packages, one or several for the target and for the drafter. Runs on a Mac only.

Their caches are states of theirs, or, for the Neural Engine, arrays of the host's (`../apple/host_cache.py`).

A package is compiled once per machine and kept: a raw one would be compiled again at every load, which takes minutes
for a large model.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...backend import EngineOptions, Installed, refuse_loop
from ...bundle.manifest import Manifest, ModelRecord
from ...bundle.parts import engines
from ...bundle.read import Bundle
from ...cache import COMPILED, prepare
from ...engines import Engines
from ...errors import BundleError, IncompatibleError, UsageError
from ..apple.chain import Chain, whole
from ..apple.engines import Array, Functions, StaticDrafter, StaticTarget, engine_file, state_ports
from ..apple.host_cache import HostCache, host_ports
from .memory import check_fits

INSTALL = 'pip install "dflash-compile[coreml]"'

_DISTRIBUTION = "coremltools"
_UNITS = {"gpu-state": "CPU_AND_GPU", "ane-io": "CPU_AND_NE"}
"""by cache policy: the Neural Engine refuses a state that is written at a position of its own choosing"""


def installed() -> Installed:
    """The version of coremltools found."""
    try:
        return Installed({_DISTRIBUTION: version(_DISTRIBUTION)})
    except PackageNotFoundError:
        return Installed({})


def open_engines(bundle: Bundle, options: EngineOptions) -> Engines:
    """Target and drafter of `bundle`. See `Backend`; Core ML runs them on the GPU or the Neural Engine, as they were
    built, or on the CPU.

    Raises `IncompatibleError` on anything but a Mac, and where the bundle would not fit its memory.
    """
    refuse_loop(options)
    if options.provider != "cpu":
        raise UsageError(
            f"provider={options.provider!r}",
            why="Core ML chooses between the GPU and the CPU by itself",
            fix="leave it out",
        )
    library = _import_library()
    manifest = bundle.manifest
    check_fits(sum(manifest.sizes.values()), _state_bytes(manifest))
    units = _UNITS.get(str(manifest.config.get("cache_policy", "gpu-state")))
    if units is None:
        raise IncompatibleError(
            "the bundle's cache policy is one this version does not know",
            fix="run `pip install --upgrade dflash-compile`",
        )
    folder, (target, drafter) = _kept(options.cache), (manifest.target, manifest.drafter)
    packages = [_packages(library, bundle, model, units, folder) for model in (target, drafter)]
    chains = Chain(target, packages[0], manifest.pairing.taps), Chain(drafter, packages[1], ())
    seen = whole(manifest)
    return Engines(StaticTarget(seen, chains[0]), StaticDrafter(replace(bundle, manifest=seen), chains[1]))


def _packages(
    library: Any, bundle: Bundle, model: ModelRecord, units: str, folder: Path | None
) -> dict[str, Functions]:
    """The packages of `model` by file, each with its own cache, whoever keeps that; their compiled forms are kept in
    `folder`.
    """
    opened: dict[str, Functions] = {}
    for record in engines(model):
        file = engine_file(record)
        loaded = _Model(library, bundle.file(file), folder, _digest(bundle.manifest, file), record, units)
        opened[file] = loaded if state_ports(record) else HostCache(record, loaded)
    return opened


class _Model:
    """The functions of one package.

    They are instances of their own to Core ML, and one state made by the first, if they have any, serves them all.
    """

    def __init__(
        self, library: Any, package: Path, folder: Path | None, digest: str, record: ModelRecord, compute: str
    ) -> None:
        """Without a `folder` to keep it in, the compiled form of `package` goes when this does."""
        self._temporary: TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = TemporaryDirectory(prefix="dflash-compile-")
            folder = Path(self._temporary.name)
        compiled = _compiled(library, package, folder, digest)
        names = [graph.function for graph in record.graphs if graph.function is not None]
        units = getattr(library.ComputeUnit, compute)
        try:
            self._functions = {
                name: library.models.CompiledMLModel(str(compiled), compute_units=units, function_name=name)
                for name in names
            }
            self._state = self._functions[names[0]].make_state() if state_ports(record) else None
        except Exception as fault:  # the library's exceptions share no base of their own
            self.close()
            raise BundleError(
                "Core ML cannot load an engine of the bundle",
                where=str(compiled),
                why=str(fault),
                fix=f"delete {compiled} and try again, or build again",
            ) from fault

    def call(self, function: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Functions`."""
        results: Mapping[str, Array] = self._functions[function].predict(dict(feeds), self._state)
        return results

    def close(self) -> None:
        """Drop the models, their state, and what was compiled for them alone."""
        self._functions, self._state = {}, None
        if self._temporary is not None:
            self._temporary.cleanup()


def _import_library() -> Any:
    """The module `coremltools`. Raises `IncompatibleError` where it cannot run models."""
    try:
        library = import_module(_DISTRIBUTION)
    except ImportError as fault:
        raise IncompatibleError("coremltools cannot be imported", why=str(fault), fix=f"run: {INSTALL}") from fault
    if getattr(library.models.model, "_MLModelProxy", None) is None:
        raise IncompatibleError(
            "Core ML runs on a Mac only",
            why="this coremltools has no Core ML beneath it",
            fix="load the bundle on a Mac with macOS 15 or later",
        )
    return library


def _compiled(library: Any, package: Path, folder: Path, digest: str) -> Path:
    """The compiled form of `package` in `folder`, made on first use and found by `digest` afterwards; a package that
    changed is another one.
    """
    place = folder / f"{package.stem}-{digest}.mlmodelc"
    if not place.is_dir():
        building = place.with_suffix(f".{os.getpid()}.mlmodelc")
        library.models.utils.compile_model(str(package), str(building))
        try:
            building.rename(place)
        except OSError:  # another process was quicker
            shutil.rmtree(building, ignore_errors=True)
    return place


def _kept(cache: Path | None) -> Path | None:
    """Where compiled packages are kept; None where nothing is, or the cache cannot be written."""
    if cache is None:
        return None
    with suppress(OSError):
        prepare(cache)
        (cache / COMPILED).mkdir(exist_ok=True)
        return cache / COMPILED
    return None


def _digest(manifest: Manifest, package: str) -> str:
    """What the manifest says of every file of `package`, in 16 characters."""
    import hashlib

    prefix = f"{package}/"
    parts = [f"{name} {digest}" for name, digest in sorted(manifest.files.items()) if name.startswith(prefix)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _state_bytes(manifest: Manifest) -> int:
    total = 0
    for model in (*engines(manifest.target), *engines(manifest.drafter)):
        for shape, dtype in (state_ports(model) or host_ports(model)).values():
            count = 4 if dtype == "float32" else 2
            for size in shape:
                count *= size
            total += count
    return total
