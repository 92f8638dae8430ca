"""A bundle in, source code of an app out: the whole folder, or nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from dflash_compile.export.checkpoints.staging import check_output, staged
from dflash_compile.runtime.bundle.contract import check_contract
from dflash_compile.runtime.bundle.files import MANIFEST, check_files
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import UsageError

from .source import source_of

MARK, _KIND = "dflash-embed.json", "source folder"
# What compilers and editors leave beside source: made anew by themselves.
_MADE = frozenset({"Package.resolved", "__pycache__"})


class Mark(msgspec.Struct, frozen=True):
    """`dflash-embed.json`: what wrote a folder, so that nothing else is ever replaced."""

    language: str
    bundle: str
    """sha256 of the manifest it was written for"""
    files: dict[str, str]
    """sha256 of every file, by relative path"""


def embed(bundle: str | Path, language: str, output: str | Path, force: bool = False) -> dict[str, str]:
    """Write code in `language` ("swift" or "python") that runs `bundle` to the folder `output`; returns the text of its
    files by relative path.

    Raises `UsageError` for a language that the bundle's back-end has no code in and for an output that must not be
    replaced: one that holds anything but unchanged files of an earlier call. Raises `BundleError` for a bundle that is
    not whole.
    """
    root, place = Path(bundle), Path(output)
    check_output(place, force, _KIND, MARK)
    manifest = read_manifest(root)
    check_contract(manifest)
    check_files(root, manifest.files, manifest.sizes, "size")
    texts = source_of(manifest, language)
    if place.exists() and any(place.iterdir()):
        _check_unchanged(place)
    with staged(place, 0, _KIND) as staging:
        for name, text in texts.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(text, encoding="utf-8", newline="\n")
        mark = Mark(
            language,
            _digest((root / MANIFEST).read_bytes()),
            {name: _digest(text.encode()) for name, text in texts.items()},
        )
        (staging / MARK).write_bytes(msgspec.json.format(msgspec.json.encode(mark), indent=2) + b"\n")
        check_output(place, force, _KIND, MARK)
    return texts


def _check_unchanged(place: Path) -> None:
    """Raises `UsageError` where somebody's own work would be lost."""
    try:
        known = msgspec.json.decode((place / MARK).read_bytes(), type=Mark).files
    except msgspec.MsgspecError as fault:
        raise UsageError(
            f"{place / MARK} cannot be read", where="--output", why=str(fault), fix="choose another path"
        ) from fault
    found = {
        path.relative_to(place).as_posix(): path
        for path in place.rglob("*")
        if path.is_file() and not _made(path.relative_to(place))
    }
    own = [
        name for name, path in sorted(found.items()) if name != MARK and known.get(name) != _digest(path.read_bytes())
    ]
    if own:
        raise UsageError(
            f"{place} holds {len(own)} file(s) that were changed or added since they were written",
            where=", ".join(own[:5]),
            why="replacing the folder would lose them",
            fix="choose another path, or move them away",
        )


def _made(path: Path) -> bool:
    return any(part.startswith(".") or part in _MADE for part in path.parts)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
