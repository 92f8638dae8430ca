"""Which files lie in a folder, to the last one: a folder that cannot be looked into is an error."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import BundleError

# File managers drop these into any folder they show; nothing of ours reads them.
_LITTER = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})
_DEEPEST = 64
"""folders inside each other; no build nests more than four"""


def present(root: Path) -> set[str]:
    """Relative paths of everything in `root` that is no folder, and of links to folders, which are not followed.

    Raises `BundleError` for a folder that cannot be listed, which could hide any file, and for folders nested too
    deep.
    """
    found: set[str] = set()
    folders = [("", 0)]
    while folders:
        inside, depth = folders.pop()
        if depth > _DEEPEST:
            raise BundleError(
                f"the bundle has folders more than {_DEEPEST} deep",
                where=f"{inside[:200]}…",
                why="no build writes such a bundle",
                fix="do not use this bundle",
            )
        for entry in _entries(root / inside):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append((name, depth + 1))
            elif entry.name not in _LITTER:
                found.add(name)
    return found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as fault:
        raise BundleError(
            "a folder of the bundle cannot be listed",
            where=str(folder),
            why=f"{fault.strerror or fault}: files that nobody checked could lie in it",
            fix="let this user read it, or copy the bundle again from where it was built",
        ) from fault
