"""Small files of a checkpoint, and the hashes of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import CheckpointError
from dflash_compile.runtime.regular import read_regular

from .bounds import JSON_BYTES, check_bounds


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises `CheckpointError` when it is missing, damaged or no object."""
    try:
        value = json.loads(read_regular(path, JSON_BYTES))
    except FileNotFoundError:
        raise CheckpointError(
            f"{path.name} is missing",
            where=str(path.parent),
            why="it is part of the checkpoint",
            fix="copy or download the checkpoint again, whole",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} cannot be read", where=str(path), why=str(error), fix="copy or download the file again"
        ) from None
    if not isinstance(value, dict):
        raise CheckpointError(
            f"{path.name} holds no JSON object",
            where=str(path),
            why=f"found a {type(value).__name__}",
            fix="copy or download the file again",
        )
    check_bounds(value, str(path))
    return value


def visible(folder: Path, pattern: str) -> list[Path]:
    """Files of `folder` that match, sorted; not those with a dot in front, such as macOS leaves beside every file on
    other file systems (`._model.safetensors`).
    """
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))


def read_json_if_any(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, or an empty one where there is no such file."""
    return read_json(path) if path.exists() else {}


def stated_dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the weights, as a config.json says it."""
    return str(config.get("dtype") or config.get("torch_dtype") or "unknown").removeprefix("torch.")


def section(value: object) -> Mapping[str, Any]:
    """`value` where it is a JSON object, else an empty one: a key of the wrong kind counts as missing."""
    return value if isinstance(value, Mapping) else {}


def names_architecture(config: Mapping[str, Any], name: str) -> bool:
    """Whether the configuration lists `name` among its `architectures`."""
    listed = config.get("architectures")
    return isinstance(listed, list) and name in listed


class FileHashes(Mapping[str, str]):
    """sha256 by file name, computed when first asked for: opening a checkpoint must not read all of it."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = {path.name: path for path in sorted(paths)}
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            with self._paths[name].open("rb") as file:
                self._known[name] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
