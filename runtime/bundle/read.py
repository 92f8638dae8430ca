"""Opening a bundle: manifest first, then what it requires of this machine, then the files; no engine is loaded here."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import BundleError, IncompatibleError, UsageError
from ..foreign import foreign_errors
from ..regular import MANIFEST_BYTES, read_regular
from ..unfinished import recover
from .contract import check_contract
from .files import MANIFEST, Verify, check_files, confine
from .known import KnownHashes
from .manifest import FORMAT, VERSION, Manifest, RequirementRecord


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest and files have been checked."""

    root: Path
    manifest: Manifest
    notes: tuple[str, ...] = ()
    """what is unusual about this machine though not wrong, in sentences for the user"""
    hashed: bool = False
    """whether its files are what the manifest's hashes say: nobody looked with `verify="size"`"""

    def file(self, relative: str) -> Path:
        """The path of one of its files. Raises `BundleError` where that path leads outside."""
        return confine(self.root, relative)


class _Header(msgspec.Struct):
    """The two keys every version of the format keeps, whatever else it holds."""

    format: str
    version: int


def _nothing(requires: RequirementRecord) -> tuple[str, ...]:
    return ()


def open_bundle(
    path: str | Path,
    *,
    verify: Verify = "full",
    cache: Path | None = None,
    check: Callable[[RequirementRecord], tuple[str, ...]] = _nothing,
) -> Bundle:
    """The bundle in directory `path`, ready to be loaded where this machine has what it requires: `check` says so, in
    notes for the user, or raises; `runtime.requirements` has the one that asks for the library.

    `verify="full"` hashes every file (the default), `"changed"` those written to since this machine hashed them last,
    by what it noted in the folder `cache`, and `"size"` compares sizes only. Raises `UsageError` where there is no
    bundle, `IncompatibleError` for a newer format, `BundleError` for a damaged bundle, and what `check` raises, which
    comes before hashes: it costs nothing.
    """
    if verify not in ("full", "changed", "size"):
        raise UsageError(
            f"verify={verify!r} is not a way to check a bundle", fix='use verify="full", "changed" or "size"'
        )
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str) or "\0" in os.fspath(path):
        raise UsageError(f"{path!r:.60} is no path", fix="give the bundle's folder as text or as a pathlib.Path")
    root = Path(path)
    manifest = read_manifest(root)
    check_contract(manifest)
    notes = check(manifest.requires)
    known = KnownHashes(cache, root)
    check_files(root, manifest.files, manifest.sizes, verify, known.sha256)
    known.keep()
    return Bundle(root, manifest, notes, hashed=verify != "size")


def read_manifest(root: Path) -> Manifest:
    """The manifest of the bundle in `root`, by its types alone.

    Raises as `open_bundle` does. Unknown keys are errors: a bundle that says more than we understand cannot be trusted
    to mean what we think.
    """
    file = root / MANIFEST
    with foreign_errors(
        UsageError, "the bundle cannot be looked at", where=str(root), fix="check path and permissions"
    ):
        recover(root)
        _check_there(root, file)
    fix = "build the bundle again"
    with foreign_errors(BundleError, "the manifest cannot be read", where=str(file), fix=fix):
        document = read_regular(file, MANIFEST_BYTES)
        _check_version(msgspec.json.decode(document, type=_Header), file)
        return msgspec.json.decode(document, type=Manifest)


def _check_there(root: Path, file: Path) -> None:
    if not root.is_dir():
        raise UsageError(
            "there is no such bundle",
            where=str(root),
            why="a bundle is a directory with a manifest.json",
            fix="give the directory that `dflash-compile build -o` wrote",
        )
    if not file.is_file():
        raise UsageError(
            "this directory is not a bundle",
            where=str(root),
            why=(
                "it has no manifest.json: a checkpoint has to be built first, and an interrupted build leaves no bundle"
            ),
            fix="run `dflash-compile build TARGET DRAFTER -o DIR` and give DIR",
        )


def _check_version(header: _Header, file: Path) -> None:
    if header.format != FORMAT:
        raise BundleError(
            f"the manifest is of the format {header.format!r}, not {FORMAT!r}",
            where=str(file),
            fix="give a bundle that dflash-compile built",
        )
    if header.version > VERSION:
        raise IncompatibleError(
            f"the bundle is of format version {header.version}, newer than version {VERSION}, the newest this"
            " dflash-compile reads",
            where=str(file),
            why="a newer dflash-compile built it",
            fix="run `pip install --upgrade dflash-compile`, or build the bundle again with this version",
        )
    if header.version < 1:
        raise BundleError(
            f"the manifest has the format version {header.version}, which never existed",
            where=str(file),
            fix="build the bundle again",
        )
