"""What this machine keeps between runs: where it lies, how large it is, and how to be rid of it.

Everything in it can be made again, so nothing here is worth an error to somebody who only wants to load a bundle.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from contextlib import suppress
from pathlib import Path

ENVIRONMENT = "DFLASH_COMPILE_CACHE"
"""names another folder, or is `off`"""
ENGINES, CHECKED, COMPILED = "engines", "checked", "compiled"
"""folders in it: packed engines, hashes of bundles, and what a back-end's library compiled for this machine"""

_OFF = frozenset({"", "off", "none", "0"})
# Backup tools leave such folders out (bford.info/cachedir), and `clean` empties no other.
_TAG = "CACHEDIR.TAG"
_SIGNATURE = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# Made by dflash-compile; `dflash-compile doctor --clean-cache`"
    " empties it.\n"
)


def cache_folder() -> Path | None:
    """The folder, there or not; None where it is switched off or cannot be named: `cache_note` says why."""
    with suppress(RuntimeError, OSError):
        return _folder()
    return None


def cache_note() -> str | None:
    """Where a folder was asked for that cannot be named, a sentence for the user; else None."""
    try:
        _folder()
    except (RuntimeError, OSError) as fault:  # no such user, or a relative path and no current directory
        if ENVIRONMENT in os.environ:
            return f"Nothing is kept between runs: {ENVIRONMENT}={os.environ[ENVIRONMENT]} names no folder ({fault})."
    return None


def _folder() -> Path | None:
    asked = os.environ.get(ENVIRONMENT)
    if asked is None:
        return _user_caches() / "dflash-compile"
    return None if asked.strip().lower() in _OFF else Path(asked).expanduser().absolute()


def prepare(folder: Path) -> None:
    """Make sure that the cache `folder` is there, for its user alone. Raises `OSError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / _TAG).exists():
        write(folder / _TAG, _SIGNATURE.encode())


def write(file: Path, content: bytes) -> None:
    """`content` at `file`, whole or not at all. Raises `OSError`."""
    staged = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        staged.write_bytes(content)
        staged.replace(file)
    finally:
        staged.unlink(missing_ok=True)


def cache_size(folder: Path) -> int:
    """Bytes of all files in the cache `folder`; 0 where there is none."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone meanwhile
                total += (Path(here) / name).lstat().st_size
    return total


def clean(folder: Path) -> int:
    """Empty the cache `folder`; returns the bytes that are gone. Does nothing to a folder that is no such cache.

    Sessions that are open keep what they use where the system lets open files be removed.
    """
    if not (folder / _TAG).is_file():
        return 0
    before = cache_size(folder)
    for name in (ENGINES, CHECKED, COMPILED):
        shutil.rmtree(folder / name, ignore_errors=True)
    return before - cache_size(folder)


def _user_caches() -> Path:
    """Where programs of this system keep such things. Raises `RuntimeError` where the user has no home."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    asked = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return asked if asked.is_absolute() else Path.home() / ".cache"  # the XDG specification: relative ones do not count
