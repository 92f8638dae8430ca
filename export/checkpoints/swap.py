"""Putting a finished folder in the place of another."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from dflash_compile.runtime.unfinished import aside

_HERE = -100 if sys.platform == "linux" else -2
"""AT_FDCWD: names count from the working folder"""
_EXCHANGE = 2
"""RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS"""


def swap(staged: Path, place: Path) -> None:
    """Rename the folder `staged`, which `beside` made, to `place` beside it; what was there is removed.

    Whatever interrupts it, a kill included, one of the two is at `place` afterwards where the system can exchange two
    names in one step, as Linux and macOS can on most disks; elsewhere the next touch of `place` puts the old one back.
    Raises `OSError` where a rename fails.
    """
    if not os.path.lexists(place):
        staged.rename(place)
    elif _exchanged(staged, place):
        _remove(staged)
    else:
        _one_after_the_other(staged, place)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system let two names change places in one step."""
    library = ctypes.CDLL(None) if sys.platform in ("linux", "darwin") else None
    call = getattr(library, "renameat2" if sys.platform == "linux" else "renameatx_np", None)
    if call is None:
        return False
    names = (os.fsencode(one), os.fsencode(other))
    return bool(call(_HERE, names[0], _HERE, names[1], ctypes.c_uint(_EXCHANGE)) == 0)


def _one_after_the_other(staged: Path, place: Path) -> None:
    old = aside(staged)
    try:
        place.rename(old)
        staged.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
        _remove(old)


def _remove(folder: Path) -> None:
    """The new folder is in place: an interrupt must not make it look as if it were not. The next writer removes what
    stays.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
