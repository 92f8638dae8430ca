"""What DFlash is compared with: one file per baseline, found by name. No baseline is named here."""

from __future__ import annotations

import difflib
import pkgutil
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.session import Session

from ..variants import Variant


class Baseline(Protocol):
    """A module of this package. Importing it must not import a library that the runtime does not need."""

    SUMMARY: str
    """what it is, for the reader of a report"""

    def open_baseline(self, bundle: Path, session: Session) -> AbstractContextManager[Variant]:
        """The variant itself, for as long as the context lasts. `session` is the loaded `bundle`.

        Raises `IncompatibleError` where this bundle or machine has no such variant.
        """
        ...


def baseline_names() -> list[str]:
    """Every baseline there is, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find_baseline(name: str) -> Baseline:
    """The baseline in the file `name`. Raises `UsageError` for one that is not there."""
    names = baseline_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise UsageError(
            f"unknown baseline: `{name}`", fix=f"did you mean `{close[0]}`?" if close else f"known: {', '.join(names)}"
        )
    return cast("Baseline", import_module(f"{__name__}.{name}"))
