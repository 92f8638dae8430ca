"""How a checkpoint tensor is stored in an engine: as floats, or quantised per block.

An encoding works on whole rows of the first axis, so a tensor of any size passes through it in small chunks. Each of
its parts is one initializer, whose rows are those of the tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx_ir as ir
import torch

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StoredArray:
    """One stored array of an encoded tensor."""

    suffix: str
    """added to the tensor's name; empty where the encoding has one part"""
    dtype: ir.DataType
    shape: Shape

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.bitwidth // 8

    @property
    def bytes(self) -> int:
        """Bytes of the whole array."""
        return self.shape[0] * self.row_bytes


class Encoding(Protocol):
    """Turns rows of a tensor into rows of its parts."""

    TILED: ClassVar[bool]
    """whether a few rows at once are no dearer by the row than many"""

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """The parts of a tensor of this shape."""
        ...

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """The rows of every part, for these rows of the tensor (any float dtype)."""
        ...


@dataclass(frozen=True)
class Floats:
    """Plain floats: `half` as float16, else float32."""

    TILED: ClassVar[bool] = True
    half: bool = False

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """One part of the tensor's own shape."""
        return (StoredArray("", ir.DataType.FLOAT16 if self.half else ir.DataType.FLOAT, shape),)

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """The rows, cast."""
        return (rows.to(torch.float16 if self.half else torch.float32).contiguous().numpy(),)
