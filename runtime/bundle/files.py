"""The files of a bundle: where a manifest may point, and whether what lies there is what was built.

Knows nothing about what the files mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from typing import Literal

from ..errors import BundleError
from ..foreign import foreign_errors
from .listing import present

MANIFEST = "manifest.json"
Verify = Literal["full", "changed", "size"]

_CHUNK = 1 << 20
_AGAIN = "copy the bundle again from where it was built, or build it again"


def confine(root: Path, relative: str) -> Path:
    """The path of `relative` inside the bundle `root`.

    Raises `BundleError` for an absolute path, a `..`, a backslash or drive letter, or a link that leads outside.
    In the hub's cache, files are links into the `blobs` beside all snapshots of the repository.
    """
    parts = PurePosixPath(relative).parts
    if (
        not parts
        or PurePosixPath(relative).is_absolute()
        or ".." in parts
        or "\\" in relative
        or ":" in relative
        or "\0" in relative
    ):
        raise BundleError(
            "the manifest names a path outside the bundle",
            where=repr(relative),
            why="a bundle may only read its own files",
            fix="do not use this bundle",
        )
    path = root.joinpath(*parts)
    try:
        file = path.resolve()
        inside = file.is_relative_to(root.resolve()) or file.parent == _blobs(root)
    except (OSError, RuntimeError) as fault:  # RuntimeError: links in a circle, before Python 3.13
        raise BundleError(
            "a file of the bundle cannot be found", where=str(path), why=str(fault), fix=_AGAIN
        ) from fault
    if not inside:
        raise BundleError(
            "a link in the bundle leads outside it",
            where=str(path),
            why="a bundle may only read its own files",
            fix="replace it by the file itself; from the hub: snapshot_download(…, local_dir=…)",
        )
    return path


def _blobs(root: Path) -> Path | None:
    """Where the files of `root` are if it is a snapshot in the cache of the Hugging Face hub: that is made of links."""
    repository = root.resolve().parent.parent
    return repository / "blobs" if root.resolve().parent.name == "snapshots" else None


def sha256(path: Path) -> str:
    """sha256 of a file in hex, read a mebibyte at a time."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def check_files(
    root: Path,
    hashes: Mapping[str, str],
    sizes: Mapping[str, int],
    verify: Verify,
    known: Callable[[Path], str] = sha256,
) -> None:
    """Every listed file is there, whole and unchanged, and nothing else is.

    `hashes` are sha256 in hex and `sizes` bytes, by relative path. `verify="full"` reads every byte, `"changed"` takes
    the hash from `known`, which may remember it, and `"size"` leaves the hashes out. Raises `BundleError` naming the
    first file that differs.
    """
    paths = {name: confine(root, name) for name in sorted(hashes)}
    for name, path in paths.items():
        with _reading(path):
            there = path.is_file()
        if not there:
            raise BundleError(f"the bundle lacks {name}", where=str(path), why="the manifest lists it", fix=_AGAIN)
    if surplus := sorted(present(root) - paths.keys() - {MANIFEST}):
        raise BundleError(
            f"the bundle holds {len(surplus)} file(s) the manifest does not list",
            where=", ".join(surplus[:5]),
            why="a file nobody checked could be read in place of one that was",
            fix="delete them, or build the bundle again",
        )
    for name, path in paths.items():
        with _reading(path):
            found = path.stat().st_size
        if name in sizes and found != sizes[name]:
            raise BundleError(
                f"{name} is {found} bytes long, not {sizes[name]}",
                where=str(path),
                why="it was cut short or replaced",
                fix=_AGAIN,
            )
    if verify != "size":
        for name, path in paths.items():
            with _reading(path):
                digest = (known if verify == "changed" else sha256)(path)
            if digest != hashes[name]:
                raise BundleError(
                    f"{name} is not the file that was built",
                    where=str(path),
                    why="its sha256 differs from the manifest's",
                    fix=_AGAIN,
                )


def _reading(path: Path) -> AbstractContextManager[None]:
    what = "a file of the bundle cannot be read"
    return foreign_errors(BundleError, what, where=str(path), fix="check its permissions and the disk")
