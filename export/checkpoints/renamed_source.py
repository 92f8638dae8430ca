"""Tensors under other names than their file gives them: for checkpoints that hold the model looked for under names of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import CheckpointError

from .safetensors_source import check_rows

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from .int8_source import Int8Source
    from .safetensors_source import SafetensorsSource


class RenamedSource:
    """A `TensorSource` over another whose tensors are called `rename(name)`, or are left out where that is None."""

    def __init__(self, source: SafetensorsSource | Int8Source, rename: Callable[[str], str | None]) -> None:
        """Raises `CheckpointError` where two tensors get one name."""
        self._source = source
        self._stored: dict[str, str] = {}
        for stored in source.shapes():
            name = rename(stored)
            if name in self._stored:
                raise CheckpointError(
                    f"two tensors are {name}",
                    where=str(self.paths[0].parent),
                    why=f"{self._stored[name]} and {stored} both mean it",
                    fix="copy or download the checkpoint again, from one revision",
                )
            if name is not None:
                self._stored[name] = stored

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return self._source.paths

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        shapes = self._source.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that the model does not use."""
        for name in names:
            del self._stored[name]

    def dtype(self, name: str) -> str:
        """The dtype that rows of `name` come in, by torch's name."""
        return self._source.dtype(self._stored[name])

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis. Raises `CheckpointError` for a name or rows that are not there."""
        check_rows(self.shapes(), name, start, stop)
        return self._source.rows(self._stored[name], start, stop)


def by_prefix(prefixes: Mapping[str, str | None]) -> Callable[[str], str | None]:
    """A renaming that replaces the longest of `prefixes` a name starts with; None drops the tensor.

    Other names stay.
    """

    def rename(name: str) -> str | None:
        found = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
        if found is None:
            return name
        new = prefixes[found]
        return None if new is None else new + name[len(found) :]

    return rename
