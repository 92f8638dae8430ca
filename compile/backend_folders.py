"""Back-ends: a folder each, found by name. What of it is asked for is imported then, and nothing else."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from dflash_compile.runtime.errors import UsageError


def backend_names(having: str = "backend") -> list[str]:
    """Folders of this package that are back-ends and have a module `having`, sorted. None is imported."""
    folders = sorted(file.parent for file in Path(__file__).parent.glob("*/backend.py"))
    return [folder.name for folder in folders if (folder / f"{having}.py").is_file()]


def backend_module(name: str, module: str, what: str) -> ModuleType:
    """The module `module`, which is `what` of a back-end, of the one called `name`.

    Raises `UsageError` for an unknown back-end, and for one without it.
    """
    having = backend_names(module)
    if name not in having:
        known = name in backend_names()
        raise UsageError(
            f"the back-end {name} has no {what}" if known else f"unknown back-end {name!r}",
            where="--backend",
            fix=f"choose one of {', '.join(having)}",
        )
    return import_module(f"{__package__}.{name}.{module}")
