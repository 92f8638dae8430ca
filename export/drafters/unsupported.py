"""DFlash dialects known by sight that cannot be opened: their users get the dialect's name instead of a list of wrong
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.files import read_json

SIGN = ""  # not a layout to look for

Config = Mapping[str, Any]


SIGHTS: Mapping[str, Callable[[Config], bool]] = {
    "speculators (of another algorithm than DFlash)": lambda config: (
        config.get("speculators_model_type", "dflash") != "dflash"
    ),
}


def recognise(path: Path) -> str | None:
    """The dialect's name, or None."""
    return _dialect(path)


def open_checkpoint(path: Path) -> NoReturn:
    """Always raises `CheckpointError`, naming the dialect."""
    raise CheckpointError(
        f"this is a {_dialect(path)} drafter, which cannot be opened",
        where=str(path / "config.json"),
        why="its tensors or its rules differ from DFlash v1, and nothing here computes them",
        fix="use a drafter in one of the layouts that the README lists",
    )


specify = open_checkpoint


def _dialect(path: Path) -> str | None:
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    return next((name for name, seen in SIGHTS.items() if seen(config)), None)
