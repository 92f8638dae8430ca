"""Folders that a writer makes beside their place, and what a killed one leaves there.

A folder is written under another name, which a lock marks as somebody's work, and takes its place when it is whole.
The system gives up the lock with the process, however that ends: what is found without one belongs to nobody.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_REPLACED = ".replaced"
_NAME = re.compile(rf"\.(?P<place>.+)\.[0-9a-f]{{8}}\.building(?:{re.escape(_REPLACED)})?", re.DOTALL)


@contextmanager
def beside(place: Path) -> Iterator[Path]:
    """A new empty folder next to `place`, marked as this process's work; what is left of it at the end is removed.

    What killed processes left there goes first. Raises `OSError` where no folder can be made.
    """
    recover(place)
    _remove_abandoned(place)
    folder, lock = _made(place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def aside(folder: Path) -> Path:
    """Where what the new `folder` replaces goes, for the moment in which neither is in its place."""
    return folder.with_name(f"{folder.name}{_REPLACED}")


def recover(place: Path) -> None:
    """Where a process was killed while it put a folder at `place`, so that none is there: put back what was.

    Does what the system allows, and raises nothing.
    """
    with suppress(OSError):
        place = Path(os.path.realpath(place))
        if os.path.lexists(place):
            return
        for old in _siblings(place.parent):
            writer = old.with_name(old.name.removesuffix(_REPLACED))
            if old.name.endswith(_REPLACED) and _place(old) == place.name and not _in_use(writer):
                old.rename(place)
                return


def abandoned(folder: Path) -> list[Path]:
    """What killed processes left in `folder`, as far as the system tells that they are gone."""
    with suppress(OSError):
        return [path for path in _siblings(folder) if not _needed(path) and _in_use(path) is False]
    return []


def _remove_abandoned(place: Path) -> None:
    """What was left beside `place` is locked while it is removed: a folder that was made this moment is not locked yet,
    and whoever made it notices that it went.
    """
    with suppress(OSError):
        for path in _siblings(place.parent):
            if _place(path) == place.name and not _needed(path):
                with suppress(BlockingIOError):
                    lock = _lock(path, wait=False)
                    if lock is not None:
                        shutil.rmtree(path, ignore_errors=True)
                        os.close(lock)


def _needed(path: Path) -> bool:
    """Whether it is what was in a place that is empty now, or may be in the next moment."""
    if not path.name.endswith(_REPLACED):
        return False
    writer = path.with_name(path.name.removesuffix(_REPLACED))
    return not os.path.lexists(path.with_name(_place(path))) or _in_use(writer) is True


def _place(path: Path) -> str:
    match = _NAME.fullmatch(path.name)
    return match["place"] if match else ""


def _siblings(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return [folder / name for name in sorted(found) if _NAME.fullmatch(name)]


def _made(place: Path) -> tuple[Path, int | None]:
    # Drawn anew each time: process ids repeat, between containers on one disk and after a kill.
    while True:
        folder = place.with_name(f".{place.name}.{secrets.token_hex(4)}.building")
        folder.mkdir()
        lock = _lock(folder)
        if lock is None or folder.is_dir():  # another process may have taken it for a dead one's before it was locked
            return folder, lock
        os.close(lock)


def _in_use(folder: Path) -> bool | None:
    """Whether a living process marks `folder` as its work; None where the system does not tell."""
    if not os.path.lexists(folder):
        return False
    try:
        lock = _lock(folder, wait=False)
    except BlockingIOError:
        return True
    if lock is None:
        return None
    os.close(lock)
    return False


def _lock(folder: Path, *, wait: bool = True) -> int | None:
    """The descriptor that holds the lock of `folder`; None where the system has none for folders.

    Raises `BlockingIOError` where another one holds it and `wait` is not set.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # some network disks
        os.close(descriptor)
        return None
    return descriptor
