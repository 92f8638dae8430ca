"""A directory that appears whole or not at all: written under another name beside its place, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dflash_compile.runtime.errors import BuildError, UsageError
from dflash_compile.runtime.unfinished import beside, recover

from .swap import swap

_SPARE_BYTES = 16 << 20
"""for graphs, tokenizer and manifest, which nobody counts beforehand"""


def check_output(output: Path, force: bool, kind: str = "bundle", mark: str = "manifest.json") -> None:
    """Raises `UsageError` where `output` must not be written, or cannot be.

    It is there and not `force`, it is something else than a `kind`, which has the file `mark`, it lies in something
    that is no folder, or its name is no Unicode.
    """
    try:
        os.fspath(output).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{output} is no path that every library can open",
            where="--output",
            why=str(error),
            fix="choose a name in UTF-8",
        ) from error
    recover(output)
    if not output.exists():
        nearest = next((folder for folder in output.absolute().parents if folder.exists()), None)
        if nearest is not None and not nearest.is_dir():
            raise UsageError(
                f"{nearest} is no folder",
                where="--output",
                why=f"the {kind} would lie in it",
                fix="choose another path",
            )
        return
    if not output.is_dir() or (any(output.iterdir()) and not (output / mark).is_file()):
        raise UsageError(
            f"{output} is there and is no {kind}",
            where="--output",
            why=f"only a {kind} is ever replaced",
            fix="choose another path",
        )
    if not force and any(output.iterdir()):
        raise UsageError(
            f"there is a {kind} at {output}", where="--output", fix="choose another path, or add --force to replace it"
        )


@contextmanager
def staged(output: Path, needed: int, kind: str = "bundle") -> Iterator[Path]:
    """A new directory to write into, which takes the place of `output` when the block ends.

    On any failure, Ctrl-C and SIGTERM included, it is removed and what was at `output` stays as it was. Raises
    `BuildError` where the disk has less than `needed` bytes to spare, or runs full. `kind` names what is written in
    errors.
    """
    place = Path(os.path.realpath(output))  # a link stays a link: what it leads to is replaced
    with _disk_faults(place, kind), _terminable():
        place.parent.mkdir(parents=True, exist_ok=True)
        _check_space(place.parent, needed + _SPARE_BYTES, kind)
        with beside(place) as staging:
            yield staging
            _flush(staging)
            swap(staging, place)


def _check_space(folder: Path, needed: int, kind: str) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise BuildError(
            f"the disk has too little space for the {kind}",
            where=str(folder),
            why=f"it needs {needed >> 20} MiB and {free >> 20} MiB are free",
            fix="free some space, or choose an output on another disk",
        )


@contextmanager
def _disk_faults(place: Path, kind: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
            raise
        raise BuildError(
            f"the {kind} could not be written",
            where=str(place.parent),
            why=error.strerror or str(error),
            fix="check the space and the permissions there, or choose another output",
        ) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM unwind like Ctrl-C, where nobody else handles it. Handlers belong to the main thread."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _flush(folder: Path) -> None:
    """Every file and folder on disk, so that a power cut cannot leave a renamed but empty bundle."""
    for path in (*sorted(folder.rglob("*")), folder):
        if path.is_file():
            # Windows flushes only what is open for writing; elsewhere a file linked from another bundle may be
            # read-only.
            with path.open("rb" if os.name == "posix" else "rb+") as file:
                os.fsync(file.fileno())
        elif os.name == "posix":  # elsewhere a folder cannot be opened, and needs no flushing
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
