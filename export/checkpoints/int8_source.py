"""Tensors of a checkpoint whose linear weights are int8 with a scale per output channel, as float32 rows.

Sits between the files and every dialect: a dialect sees the names and shapes of the unquantised checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from dflash_compile.runtime.errors import CheckpointError

from .files import section
from .quantization_config import KEY, check_quantization
from .safetensors_source import DTYPES, SafetensorsSource, check_rows

SCALE = "_scale"
"""after the name of a weight: the name of its scales"""


class Int8Source:
    """A `TensorSource` over a compressed-tensors checkpoint: weight = int8 * scale, in float32, made when rows are
    read.
    """

    def __init__(self, folder: Path, dtypes: Mapping[str, str] = DTYPES) -> None:
        """Read all headers; `dtypes` are those that tensors other than quantised weights may have.

        Raises `CheckpointError` as `SafetensorsSource` does, and where int8 weights and scales do not belong together.
        """
        self._stored = SafetensorsSource(folder, {**dtypes, "I8": "int8"})
        self.paths = self._stored.paths
        stored = self._stored.shapes()
        self._scales = {name: name + SCALE for name in stored if self._stored.dtype(name) == "int8"}
        self._check(stored, str(folder))
        scales = set(self._scales.values())
        self._shapes = {name: shape for name, shape in stored.items() if name not in scales}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name and shape of every tensor of the unquantised checkpoint."""
        return self._shapes

    def drop(self, names: Iterable[str]) -> None:
        """Forget tensors that the model does not use."""
        for name in names:
            del self._shapes[name]

    def dtype(self, name: str) -> str:
        """The dtype that rows of `name` come in: float32 where they are stored as int8."""
        return "float32" if name in self._scales else self._stored.dtype(name)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis. Raises `CheckpointError` for a name or rows that are not there."""
        check_rows(self._shapes, name, start, stop)
        rows = self._stored.rows(name, start, stop)
        if name not in self._scales:
            return rows
        return rows.float() * self._stored.rows(self._scales[name], start, stop).float().reshape(-1, 1)

    def _check(self, stored: Mapping[str, tuple[int, ...]], where: str) -> None:
        faults = [] if self._scales else ["no tensor is int8"]
        for name, scale in self._scales.items():
            shape = stored[name]
            if len(shape) != 2 or not name.endswith(".weight"):
                faults.append(f"{name} {list(shape)} is int8 and no weight of a linear layer")
            elif scale not in stored:
                faults.append(f"{name} has no {scale}")
            elif stored[scale] not in ((shape[0], 1), (shape[0],)):
                faults.append(f"{scale} has the shape {list(stored[scale])}, not {[shape[0], 1]}")
            elif self._stored.dtype(scale) == "int8":
                faults.append(f"{scale} is int8")
        owners = set(self._scales.values())
        faults += [
            f"{name} scales nothing" for name in stored if name.endswith(f".weight{SCALE}") and name not in owners
        ]
        if faults:
            more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise CheckpointError(
                "the quantised weights do not match their configuration",
                where=where,
                why="; ".join(faults[:3]) + more,
                fix="check that config and weights are of the same checkpoint, whole",
            )


def open_tensors(
    folder: Path, config: Mapping[str, Any], dtypes: Mapping[str, str] = DTYPES
) -> SafetensorsSource | Int8Source:
    """The weights in `folder`, quantised where its configuration `config` says so.

    Raises `CheckpointError` as the two sources do.
    """
    if config.get(KEY) is None:
        return SafetensorsSource(folder, dtypes)
    check_quantization(section(config[KEY]), f"{folder / 'config.json'}: {KEY}")
    return Int8Source(folder, dtypes)
