"""One packed engine in the cache: a folder that appears whole, and is looked at before it is trusted."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ...bundle.files import sha256
from ...bundle.stamps import TRUSTED, Stamp, stamp
from ...cache import write

_RECORD = "entry.json"
_UNUSED_SECONDS = 30 * 24 * 3600
_ABANDONED_SECONDS = 24 * 3600
"""no engine takes so long to be packed: whoever staged this was interrupted"""


class _File(msgspec.Struct, frozen=True):
    sha256: str
    stamp: Stamp


class _Record(msgspec.Struct, frozen=True):
    files: dict[str, _File]
    usable: bool = True
    """False: this engine packed gives other answers here than the engine itself, and need not be tried again"""


class Entry:
    """An engine `engine.onnx` with its weights in the folder `folder`, which need not be there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = folder / "engine.onnx"
        self.usable = False
        """whether there is an engine to load: known once `whole` or `staged` has said so"""

    def whole(self) -> bool:
        """Whether the folder holds what was written to it, to the last byte, and it can be read."""
        try:
            return self._check(msgspec.json.decode((self.folder / _RECORD).read_bytes(), type=_Record))
        except (OSError, msgspec.MsgspecError):
            return False

    def _check(self, record: _Record) -> bool:
        if set(record.files) != {path.name for path in self._contents()}:
            return False
        found = {}
        for name, file in record.files.items():
            now = stamp(self.folder / name)
            if not (TRUSTED and now == file.stamp) and sha256(self.folder / name) != file.sha256:
                return False
            found[name] = _File(file.sha256, now)
        if found != record.files:  # copied, or restored from a backup
            with suppress(OSError):
                self._write(_Record(found, record.usable))
        self.usable = record.usable
        return True

    @contextmanager
    def staged(self) -> Iterator[Entry]:
        """Another entry to write to, which becomes this one when the block ends.

        Where another process was quicker, its entry stays; whatever was there and is not whole makes way. Raises
        `OSError`.
        """
        staging = Entry(self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}"))
        staging.usable = True
        try:
            staging.folder.mkdir(parents=True)
            yield staging
            staging._close()
            with suppress(OSError):
                staging.folder.rename(self.folder)
            if not self.whole():
                self.remove()
                staging.folder.rename(self.folder)
                self.usable = staging.usable
        finally:
            staging.remove()

    def refuse(self) -> None:
        """Keep nothing of the engine but the fact that it is of no use."""
        for path in self._contents():
            path.unlink()
        self.usable = False

    def used(self) -> None:
        """Note that the entry was of use today."""
        with suppress(OSError):
            os.utime(self.folder / _RECORD)

    def remove(self) -> None:
        """Take the folder away, as far as the system lets it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _close(self) -> None:
        """Everything on disk, and the record of it: a power cut must not leave an entry that only looks whole."""
        files = {}
        for path in self._contents():
            with path.open("rb+") as opened:
                os.fsync(opened.fileno())
            files[path.name] = _File(sha256(path), stamp(path))
        self._write(_Record(files, self.usable))

    def _contents(self) -> list[Path]:
        return [
            path for path in self.folder.iterdir() if path.name != _RECORD and not path.name.startswith(f".{_RECORD}")
        ]

    def _write(self, record: _Record) -> None:
        write(self.folder / _RECORD, msgspec.json.encode(record))


def forget_unused(folder: Path) -> None:
    """Remove entries of `folder` that nobody has used for a month, and what interrupted processes left."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        with suppress(OSError):
            if path.name.startswith("."):
                idle, limit = time.time() - path.stat().st_mtime, _ABANDONED_SECONDS
            else:
                idle, limit = time.time() - (path / _RECORD).stat().st_mtime, _UNUSED_SECONDS
            if idle > limit:
                shutil.rmtree(path, ignore_errors=True)
