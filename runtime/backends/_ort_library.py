"""ONNX Runtime itself: is it here, which device runs, and the one thread pool all sessions of a process share."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from threading import Lock
from typing import Any

from ..errors import IncompatibleError, UsageError
from . import EngineOptions, Installed

INSTALL = 'pip install "dflash-compile[cpu]"'

# Both bring the module `onnxruntime`.
_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

_pool_lock = Lock()
_pool_threads: int | None = None


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
            "ONNX Runtime cannot be imported", why=str(fault), fix=f'run: {INSTALL}   (with an NVIDIA GPU: pip install "dflash-compile[cuda]")'
        ) from fault


def choose_provider(library: Any, options: EngineOptions) -> tuple[str, tuple[str, ...]]:
    """The device family that will run, and a note where it is not the one asked for. Raises `UsageError` for a family that does not exist."""
    if options.provider not in _PROVIDERS:
        raise UsageError(f"provider={options.provider!r}", fix=f"use one of: {', '.join(_PROVIDERS)}")
    if _PROVIDERS[options.provider] in library.get_available_providers():
        return options.provider, ()
    note = (
        f"This ONNX Runtime has no {options.provider.upper()}: running on the CPU. "
        "With an NVIDIA GPU: `pip uninstall onnxruntime`, then `pip install onnxruntime-gpu`."
    )
    return "cpu", (note,)


def session_options(library: Any, threads: int | None) -> Any:
    """Options of a session that runs on the shared pool.

    Sessions with pools of their own spin while idle and slow whichever one works. Raises `UsageError` where another size is asked of a pool that runs.
    """
    global _pool_threads
    with _pool_lock:
        if _pool_threads is None:
            _pool_threads = _start_pool(library, threads)
        elif threads is not None and threads != _pool_threads:
            raise UsageError(
                f"threads={threads}, but this process already runs {_pool_threads}",
                why="all bundles of a process share one pool",
                fix="give `threads` to the first load only",
            )
    options = library.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    return options


def providers(library: Any, device: str) -> list[str]:
    """ONNX Runtime's names for `device`, with the CPU to catch what it cannot run."""
    return [_PROVIDERS[device]] if device == "cpu" else [_PROVIDERS[device], _PROVIDERS["cpu"]]


def available_cores() -> int:
    """Cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _start_pool(library: Any, threads: int | None) -> int:
    size = threads or available_cores()
    try:
        library.set_global_thread_pool_sizes(size, 1)
    except Exception as fault:
        # The host app was first: its pool serves us too, at the size it chose. Any other failure is one.
        if "already been created" not in str(fault):
            raise IncompatibleError("ONNX Runtime cannot start its thread pool", why=str(fault), fix=f"run: {INSTALL} --upgrade") from fault
    return size
