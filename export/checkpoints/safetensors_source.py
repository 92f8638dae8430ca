"""Tensors of a safetensors checkpoint, in one file or in shards, read by rows.

Every header is read at opening, so a truncated or missing shard is found before any work starts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from dflash_compile.runtime.errors import CheckpointError
from dflash_compile.runtime.regular import require_regular

from .files import read_json, visible

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class SafetensorsSource:
    """A `TensorSource` over the safetensors files of a directory."""

    def __init__(self, folder: Path, dtypes: Mapping[str, str] = DTYPES) -> None:
        """Read all headers.

        Raises `CheckpointError` for anything missing, damaged, not in the index or of none of `dtypes` (by default
        floats).
        """
        self._allowed = dtypes
        self._homes = _shards(folder)
        indexed = any(listed is not None for listed in self._homes.values())
        self.paths = sorted({folder / name for name in self._homes} | ({folder / INDEX} if indexed else set()))
        self._files: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, str] = {}
        for file, listed in self._homes.items():
            self._read_header(folder / file, listed)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._shapes

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that the model does not use."""
        for name in names:
            del self._shapes[name]

    def dtype(self, name: str) -> str:
        """The stored dtype of `name`, by torch's name."""
        return self._dtypes[name]

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis, in the stored dtype.

        Raises `CheckpointError` for a name or rows that are not there.
        """
        check_rows(self._shapes, name, start, stop)
        # Opened anew each time: a map kept open holds every page ever read in memory, in the end the whole model.
        found: torch.Tensor = _open_shard(self._files[name]).get_slice(name)[start:stop]
        return found

    def _read_header(self, path: Path, listed: set[str] | None) -> None:
        file = _open_shard(path)
        present = set(file.keys())
        if listed is not None and present != listed:
            raise CheckpointError(
                f"the index and the shard {path.name} disagree",
                where=str(path),
                why=_difference(missing=listed - present, surplus=present - listed),
                fix="copy or download the shard and the index again, from the same revision",
            )
        for name in sorted(present):
            part = file.get_slice(name)
            if part.get_dtype() not in self._allowed:
                raise CheckpointError(
                    f"tensor {name} is stored as {part.get_dtype()}",
                    where=str(path),
                    why=f"only plain float weights are read: {', '.join(DTYPES)}",
                    fix="use the unquantised checkpoint; quantisation happens in the build",
                )
            self._files[name], self._shapes[name], self._dtypes[name] = (
                path,
                tuple(part.get_shape()),
                self._allowed[part.get_dtype()],
            )


def check_rows(shapes: Mapping[str, tuple[int, ...]], name: str, start: int, stop: int) -> None:
    """Raise `CheckpointError` unless `name` exists and has rows `start:stop`."""
    if name not in shapes:
        raise CheckpointError(
            f"there is no tensor {name}",
            why=f"the checkpoint holds {len(shapes)} others",
            fix="check the model's family and the checkpoint",
        )
    if not shapes[name] or not 0 <= start <= stop <= shapes[name][0]:
        raise CheckpointError(
            f"tensor {name} has no rows {start}:{stop}",
            why=f"its shape is {list(shapes[name])}",
            fix="check the model's configuration against its weights",
        )


def _open_shard(path: Path) -> Any:
    try:
        require_regular(path)
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise CheckpointError(
            f"the shard {path.name} is missing",
            where=str(path),
            why="the index lists tensors in it",
            fix="copy or download the missing file",
        ) from None
    except (SafetensorError, OSError, ValueError, struct.error) as error:  # ValueError: a name that is no text
        size = path.stat().st_size if path.exists() else 0
        raise CheckpointError(
            f"{path.name} is damaged or cut short",
            where=str(path),
            why=f"{error} (the file has {size} bytes)",
            fix="copy or download the file again",
        ) from None


def _difference(*, missing: set[str], surplus: set[str]) -> str:
    parts = [
        f"{label} {len(group)}: {', '.join(sorted(group)[:3])}"
        for label, group in (("not in the shard", missing), ("not in the index", surplus))
        if group
    ]
    return "; ".join(parts)


def _shards(folder: Path) -> dict[str, set[str] | None]:
    """File name → the tensors the index says it holds (None without an index).

    Where there is a whole file, an index beside it is of another save: transformers does not look at it either.
    """
    found = sorted(path.name for path in visible(folder, "*.safetensors"))
    if WHOLE in found:
        return {WHOLE: None}
    if (folder / INDEX).exists():
        return _indexed(folder / INDEX)
    if len(found) == 1:
        return {found[0]: None}
    if found:
        raise CheckpointError(
            f"{INDEX} is missing",
            where=str(folder),
            why=f"there are {len(found)} safetensors files and nothing says which belong",
            fix="copy or download the index as well",
        )
    pickles = sorted(path.name for pattern in PICKLES for path in visible(folder, pattern))
    if pickles:
        raise CheckpointError(
            "the weights are stored as pickles",
            where=str(folder / pickles[0]),
            why="unpickling runs whatever code the file holds, so it is never done",
            fix="get the model's safetensors revision, or convert it where you trust it: model.save_pretrained(folder)",
        )
    raise CheckpointError(
        "there are no weights",
        where=str(folder),
        why="no safetensors file is there",
        fix=f"copy or download {WHOLE}, or the shards and {INDEX}",
    )


def _indexed(index: Path) -> dict[str, set[str] | None]:
    weights = read_json(index).get("weight_map")
    if not isinstance(weights, dict) or not weights or not all(isinstance(file, str) for file in weights.values()):
        raise CheckpointError(
            f"{index.name} has no usable weight_map",
            where=str(index),
            why="it must map tensor names to file names",
            fix="copy or download the index again",
        )
    homes: dict[str, set[str] | None] = {
        file: {name for name, home in weights.items() if home == file} for file in sorted(set(weights.values()))
    }
    for file in homes:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"the index points at {file!r}",
                where=str(index),
                why="a shard is a safetensors file in the same folder, nothing else is opened",
                fix="copy or download the index again",
            )
    return homes
