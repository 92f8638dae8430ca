"""ONNX Runtime itself: is it here, which device runs, and how its sessions run."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ...backend import EngineOptions, Installed
from ...errors import BundleError, IncompatibleError, UsageError

INSTALL = 'pip install "dflash-compile[cpu]"'

# Both bring the module `onnxruntime`.
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def installed() -> Installed:
    """Versions of the distributions found, and a note where both are."""
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    if len(versions) < 2:
        return Installed(versions)
    return Installed(
        versions,
        (
            "onnxruntime and onnxruntime-gpu are both installed: they overwrite each other's files. "
            "Run `pip uninstall onnxruntime onnxruntime-gpu`, then install the one you want.",
        ),
    )


def import_library() -> Any:
    """The module `onnxruntime`. Raises `IncompatibleError` with the command that installs it."""
    try:
        return import_module("onnxruntime")
    except ImportError as fault:
        raise IncompatibleError(
            "ONNX Runtime cannot be imported",
            why=str(fault),
            fix=f'run: {INSTALL}   (with an NVIDIA GPU: pip install "dflash-compile[cuda]")',
        ) from fault


def choose_provider(library: Any, options: EngineOptions) -> tuple[str, tuple[str, ...]]:
    """The device family that will run, and a note where it is not the one asked for: the library lacks it, or the
    machine does.

    Raises `UsageError` for a family that does not exist.
    """
    if not isinstance(options.provider, str) or options.provider not in _PROVIDERS:
        raise UsageError(f"provider={options.provider!r}", fix=f"use one of: {', '.join(_PROVIDERS)}")
    if options.provider == "cpu":
        return "cpu", ()
    if _PROVIDERS[options.provider] in library.get_available_providers():
        missing = _unusable(library, options.provider)
        if missing is None:
            return options.provider, ()
        note = (
            f"No {options.provider.upper()} device can be used here: running on the CPU. ONNX Runtime says: {missing}. "
            "Install the newest NVIDIA driver, and CUDA and cuDNN as this onnxruntime-gpu wants them."
        )
        return "cpu", (note,)
    note = (
        f"This ONNX Runtime has no {options.provider.upper()}: running on the CPU. "
        "With an NVIDIA GPU: `pip uninstall onnxruntime`, then `pip install onnxruntime-gpu`."
    )
    return "cpu", (note,)


def _unusable(library: Any, device: str) -> str | None:
    """Why nothing can be put on `device`, or None where it can.

    A session would fall back by itself, with a line on standard error only.
    """
    try:
        library.OrtValue.ortvalue_from_numpy(np.zeros(1, np.int32), device, 0)
    except Exception as fault:  # the library's exceptions share no base of their own
        return (str(fault).strip().splitlines() or [type(fault).__name__])[0].rstrip(".")
    return None


def session_options(library: Any, threads: int | None) -> Any:
    """Options of a session with `threads` workers (default: every core this process may use) that rest as soon as a run
    ends.

    Idle workers that spin slow whichever session works: with three sessions taking turns a cycle took 2.5 times as long
    (docs/benchmarks.md). One pool for the whole process is as fast, but then the app's own sessions fail unless they
    ask for it too.
    """
    options = library.SessionOptions()
    options.intra_op_num_threads = threads or available_cores()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.log_severity_level = 3
    return options


def open_session(library: Any, file: Path, options: Any, chosen: list[str]) -> Any:
    """The session of `file`, on the app's own pool where the app made one for the whole process.

    Raises what ONNX Runtime raises.
    """
    try:
        return library.InferenceSession(str(file), options, providers=chosen)
    except Exception as fault:  # the library's exceptions share no base of their own
        if "use_per_session_threads must be false" not in str(fault):
            raise
        options.use_per_session_threads = False
        return library.InferenceSession(str(file), options, providers=chosen)


def open_engine(library: Any, file: Path, options: Any, chosen: list[str]) -> Any:
    """The session of `file`, an engine of a bundle. Raises `BundleError` where ONNX Runtime cannot load it."""
    try:
        return open_session(library, file, options, chosen)
    except Exception as fault:  # the library's exceptions share no base of their own
        raise BundleError(
            "ONNX Runtime cannot load an engine of the bundle",
            where=str(file),
            why=str(fault),
            fix="build the bundle again with this machine's onnxruntime",
        ) from fault


def providers(library: Any, device: str) -> list[str]:
    """ONNX Runtime's names for `device`, with the CPU to catch what it cannot run."""
    return [_PROVIDERS[device]] if device == "cpu" else [_PROVIDERS[device], _PROVIDERS["cpu"]]


def available_cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
