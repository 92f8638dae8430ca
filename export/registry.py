"""Finding a file of a package by name. Knows nothing about what the files do.

A layout or dialect is one module with `SIGN` (what such a folder or file looks like; empty where none opens),
`recognise(path)`, which returns the reason it matches or None, and `open_checkpoint(path)`; one of drafters also has
`specify(path)`, the spec alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from dflash_compile.runtime.errors import CheckpointError


def names(package: str) -> list[str]:
    """Names of the public modules of `package`, sorted, without importing them."""
    found = importlib.import_module(package)
    return sorted(module.name for module in pkgutil.iter_modules(found.__path__) if not module.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """The module `name` of `package`."""
    return importlib.import_module(f"{package}.{name}")


def the_one_for(package: str, path: Path, kind: str) -> ModuleType:
    """The only module of `package` that recognises `path`.

    Raises `CheckpointError` when none or several do. `kind` names the thing sought in the error.
    """
    modules = [load(package, name) for name in names(package)]
    reasons = {module: module.recognise(path) for module in modules}
    matches = [module for module, reason in reasons.items() if reason is not None]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise CheckpointError(
            f"several {kind} layouts match",
            where=str(path),
            why="; ".join(f"{_short(module)}: {reasons[module]}" for module in matches),
            fix="leave only one of them in that folder, or name the file itself",
        )
    raise CheckpointError(
        f"this is no {kind} in a known layout",
        where=str(path),
        why="looked for " + "; ".join(f"{_short(module)}: {module.SIGN}" for module in modules if module.SIGN),
        fix=f"check the path, or convert the {kind} to one of these layouts",
    )


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]
