"""Hashes of a bundle's files that this machine has computed before, kept in its cache."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec

from ..cache import CHECKED, prepare, write
from .files import sha256
from .stamps import TRUSTED, Stamp, stamp


class _Known(msgspec.Struct, frozen=True, array_like=True):
    sha256: str
    stamp: Stamp


class KnownHashes:
    """Of the files below `root`. A bundle that was moved or copied is unknown."""

    def __init__(self, cache: Path | None, root: Path) -> None:
        self._root, self._cache = root, cache if TRUSTED else None
        place = hashlib.sha256(str(root.resolve()).encode(errors="surrogateescape")).hexdigest()[:32]
        self._file = None if self._cache is None else self._cache / CHECKED / f"{place}.json"
        self._known = self._read()
        self._fresh = False

    def sha256(self, path: Path) -> str:
        """sha256 of the file at `path` in hex: the one known, where nobody has written to the file since.

        Raises `OSError`.
        """
        name, now = path.relative_to(self._root).as_posix(), stamp(path)
        known = self._known.get(name)
        if known is not None and known.stamp == now:
            return known.sha256
        digest = sha256(path)
        if now.settled and stamp(path) == now:
            self._known[name] = _Known(digest, now)
            self._fresh = True
        return digest

    def keep(self) -> None:
        """Write down what is new. Where that cannot be done, the files are hashed again next time."""
        if self._cache is None or self._file is None or not self._fresh:
            return
        with suppress(OSError, ValueError):  # ValueError: a name that is no Unicode
            prepare(self._cache)
            self._file.parent.mkdir(exist_ok=True)
            write(self._file, msgspec.json.encode(self._known))

    def _read(self) -> dict[str, _Known]:
        if self._file is not None:
            with suppress(OSError, msgspec.MsgspecError):
                return msgspec.json.decode(self._file.read_bytes(), type=dict[str, _Known])
        return {}
