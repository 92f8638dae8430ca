"""What a back-end offers a build; `runtime/backends/` has one of the same name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord

from .backend_folders import backend_module
from .backend_options import BackendOptions
from .pair_sizes import Models
from .progress import Note, Progress


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

    Importing it needs no library but those of every build. A folder may have more, for commands that ask
    `backend_folders` for it: `memory_estimate` for `plan`, `batching` for training data, `app_source` for `embed`.
    """

    @property
    def Options(self) -> type[BackendOptions]:  # noqa: N802  (a class)
        """What its engines have a choice of; `requires` and `prepare` take one."""
        ...

    def requires(self, models: Models, options: Any) -> RequirementRecord:
        """What a machine must have to load the engines that are built here."""
        ...

    def prepare(self, models: Models, options: Any, progress: Progress, owners: Collection[Owner] = OWNERS) -> Prepared:
        """Trace and lower every graph of the models in `owners`. Reads no weights."""
        ...


def find_backend(name: str) -> Backend:
    """The back-end called `name`. Raises `UsageError` for an unknown one."""
    return cast(Backend, backend_module(name, "backend", "compiler"))
