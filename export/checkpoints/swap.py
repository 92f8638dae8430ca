"""Putting a finished folder in the place of another."""

from __future__ import annotations

import shutil
from pathlib import Path


def swap(staged: Path, place: Path) -> None:
    """Rename the folder `staged`, whose name is drawn at random, to `place` beside it; what was there is removed.

    Whatever interrupts it, and wherever, one of the two is at `place` afterwards. Raises `OSError` where a rename
    fails.
    """
    old = staged.with_name(f"{staged.name}.replaced")
    try:
        if place.exists():
            place.rename(old)
        staged.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
        shutil.rmtree(old, ignore_errors=True)
