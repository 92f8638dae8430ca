"""Back-ends: a folder each, with a module `backend`, found by name; `runtime/backends/` has one of the same name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord
from dflash_compile.runtime.errors import UsageError

from .progress import Note, Progress

if TYPE_CHECKING:
    from .options import BuildOptions
    from .pair_sizes import Models


class Prepared(Protocol):
    """Graphs in a back-end's form, their weights still to be written."""

    @property
    def bytes(self) -> int:
        """Disk space the engines will take."""
        ...

    @property
    def measured(self) -> list[MeasuredRecord]:
        """What writing them cost, for the manifest, where that is worth keeping."""
        ...

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        """Write every engine below `directory`; returns how to call them, by the model they belong to."""
        ...

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        """Load what was written and run it where that is cheap. Raises `BuildError` when an engine does not work.

        What cannot be tried on this machine is a `note`.
        """
        ...


class Backend(Protocol):
    """What the module `backend` of a back-end's folder offers.

    Importing it needs no library but those of every build.
    """

    DEPLOYMENT_TARGETS: tuple[str, ...]
    """systems that engines can be made for, the default first; empty where there is nothing to choose"""
    CACHE_POLICIES: tuple[str, ...]
    """who can keep the caches, and how, the default first; empty where there is nothing to choose"""
    GROUP_SIZES: tuple[int, ...]
    """how many weights of four bits can share a scale, the default first; empty where there is nothing to choose"""
    PRECISIONS: Collection[str]
    """names that `--precision` takes; the first is the default"""
    ARCHITECTURES: Collection[str]
    """what engines are compiled for by default; empty where they run on any machine"""

    def check_options(self, options: BuildOptions) -> None:
        """Raises `UsageError` for options that this back-end does not have."""
        ...

    def requires(self, models: Models, options: BuildOptions) -> RequirementRecord:
        """What a machine must have to load the engines that are built here."""
        ...

    def prepare(
        self, models: Models, options: BuildOptions, progress: Progress, owners: Collection[Owner] = OWNERS
    ) -> Prepared:
        """Trace and lower every graph of the models in `owners`. Reads no weights."""
        ...


def backend_names() -> list[str]:
    """Folders of this package that are back-ends, sorted. None is imported."""
    return sorted(file.parent.name for file in Path(__file__).parent.glob("*/backend.py"))


def find_backend(name: str) -> Backend:
    """The back-end called `name`. Raises `UsageError` for an unknown one."""
    known = backend_names()
    if name not in known:
        raise UsageError(f"unknown back-end {name!r}", where="--backend", fix=f"choose one of {', '.join(known)}")
    return cast(Backend, import_module(f"{__package__}.{name}.backend"))
