"""Experts that a checkpoint stores one by one, as the stacked tensors that transformers' modules have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch

from .safetensors_source import check_rows

if TYPE_CHECKING:
    from pathlib import Path

    from .renamed_source import RenamedSource
    from .safetensors_source import SafetensorsSource

_EXPERT = re.compile(r"(?P<module>.*\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight")
_STACKS = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}
"""the stacked tensors, and the parts each expert's rows are made of, in order"""


class ExpertsSource:
    """A `TensorSource` in which `….experts.N.gate_proj.weight` and the like are `….experts.gate_up_proj` [E, 2 I, H]
    and `….experts.down_proj` [E, H, I].

    Experts that are not all there, or not all of one shape, stay as they are: a check against the configuration then
    lists them.
    """

    def __init__(self, source: SafetensorsSource | RenamedSource) -> None:
        self._source = source
        stored = source.shapes()
        self._stacks: dict[str, list[tuple[str, ...]]] = {}
        self._shapes = dict(stored)
        for module, count in _modules(stored).items():
            for name, parts in _STACKS.items():
                rows = [tuple(f"{module}.{number}.{part}_proj.weight" for part in parts) for number in range(count)]
                self._add(f"{module}.{name}", rows, stored)

    def _add(self, name: str, rows: list[tuple[str, ...]], stored: Mapping[str, tuple[int, ...]]) -> None:
        shapes = {tuple(stored.get(part) for part in parts) for parts in rows}
        first = next(iter(shapes))
        if len(shapes) > 1 or any(shape is None or len(shape) != 2 for shape in first):
            return
        known = [shape for shape in first if shape is not None]
        self._stacks[name] = rows
        self._shapes[name] = (len(rows), sum(shape[0] for shape in known), known[0][1])
        for parts in rows:
            for part in parts:
                del self._shapes[part]

    @property
    def paths(self) -> list[Path]:
        """The files."""
        return self._source.paths

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._shapes

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that the model does not use."""
        for name in names:
            del self._shapes[name]

    def dtype(self, name: str) -> str:
        """The dtype that rows of `name` come in, by torch's name."""
        return self._source.dtype(self._stacks[name][0][0] if name in self._stacks else name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis: of a stack, whole experts.

        Raises `CheckpointError` for a name or rows that are not there.
        """
        check_rows(self._shapes, name, start, stop)
        if name not in self._stacks:
            return self._source.rows(name, start, stop)
        shapes = self._source.shapes()
        experts = [
            torch.cat([self._source.rows(part, 0, shapes[part][0]) for part in parts])
            for parts in self._stacks[name][start:stop]
        ]
        return torch.stack(experts) if experts else torch.empty(0, *self._shapes[name][1:])


def _modules(stored: Iterable[str]) -> dict[str, int]:
    """The modules that hold experts, and one more than the highest number of an expert in each."""
    found: dict[str, int] = {}
    for name in stored:
        match = _EXPERT.fullmatch(name)
        if match:
            found[match["module"]] = max(found.get(match["module"], 0), int(match["number"]) + 1)
    return found
