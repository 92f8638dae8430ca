"""Weights as TensorRT's DequantizeLinear reads them: [N, K] in the checkpoint's own layout, scales per row or per block
of K.

All are symmetric and round to nearest with the scale as it is stored, so that the scale's own rounding costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import torch

from ..graphs.encoding import Array, Shape, StoredArray

TORCH = {ir.DataType.FLOAT: torch.float32, ir.DataType.FLOAT16: torch.float16, ir.DataType.BFLOAT16: torch.bfloat16}
_INT4_BLOCKS = (128, 64, 32)
NVFP4_BLOCK = 16
NVFP4_GLOBAL = 2.0**-6
"""Second scale of nvfp4. Fixed, so that rows stream through: block scales of e4m3 then serve blocks whose largest
weight is from 2e-3 to 42."""
_FP4_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_FP4_MIDDLES = (_FP4_LEVELS[1:] + _FP4_LEVELS[:-1]) / 2
_INT8_LEVELS, _INT4_LEVELS, _FP8_MOST, _FP4_MOST = 127, 7, 448.0, 6.0


def raw(values: torch.Tensor) -> Array:
    """The memory of `values` as numpy; dtypes that numpy lacks as integers of the same width."""
    if values.dtype is torch.bfloat16:
        values = values.view(torch.int16)
    elif values.dtype is torch.float8_e4m3fn:
        values = values.view(torch.uint8)
    array: Array = values.contiguous().numpy()
    return array


def int4_block(width: int) -> int | None:
    """The block of int4 for rows of `width` numbers, or None where no supported size divides it."""
    return next((block for block in _INT4_BLOCKS if width % block == 0), None)


def _scale(most: torch.Tensor, levels: float, dtype: ir.DataType) -> torch.Tensor:
    scale = (most / levels).to(TORCH[dtype])
    return torch.where(scale > 0, scale, torch.ones_like(scale))


@dataclass(frozen=True)
class Cast:
    """Plain floats of any of TensorRT's widths."""

    TILED: ClassVar[bool] = True
    dtype: ir.DataType

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """One part of the tensor's own shape."""
        return (StoredArray(f".{self.dtype.name.lower()}", self.dtype, shape),)

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """The rows, cast."""
        return (raw(rows.to(TORCH[self.dtype])),)


@dataclass(frozen=True)
class Rows8:
    """Eight bits, one scale a row: int8 or e4m3 floats."""

    TILED: ClassVar[bool] = True
    scale_dtype: ir.DataType
    floating: bool = False

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """Levels [N, K] and scales [N]."""
        data = (
            StoredArray(".fp8", ir.DataType.FLOAT8E4M3FN, shape)
            if self.floating
            else StoredArray(".int8", ir.DataType.INT8, shape)
        )
        return (data, StoredArray(f"{data.suffix}_scales", self.scale_dtype, shape[:1]))

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise rows [n, K], every row on its own."""
        wide = rows.float()
        scale = _scale(wide.abs().amax(-1), _FP8_MOST if self.floating else _INT8_LEVELS, self.scale_dtype)
        levels = wide / scale.float()[:, None]
        if self.floating:
            return raw(levels.clamp(-_FP8_MOST, _FP8_MOST).to(torch.float8_e4m3fn)), raw(scale)
        return levels.round().clamp(-_INT8_LEVELS, _INT8_LEVELS).to(torch.int8).numpy(), raw(scale)


@dataclass(frozen=True)
class Int4Groups:
    """int4 in blocks of `block` numbers along K."""

    TILED: ClassVar[bool] = True
    block: int
    scale_dtype: ir.DataType

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """Levels [N, K], two to a byte, and scales [N, K / block]."""
        return (
            StoredArray(".int4", ir.DataType.INT4, shape),
            StoredArray(".int4_scales", self.scale_dtype, (shape[0], shape[1] // self.block)),
        )

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise rows [n, K], every block on its own."""
        blocks = rows.float().unflatten(1, (-1, self.block))
        scale = _scale(blocks.abs().amax(-1), _INT4_LEVELS, self.scale_dtype)
        levels = (blocks / scale.float()[..., None]).round().clamp(-_INT4_LEVELS, _INT4_LEVELS).to(torch.int8)
        return _pack(levels.flatten(1).view(torch.uint8) & 15), raw(scale)


@dataclass(frozen=True)
class NvFp4:
    """e2m1 floats in blocks of 16, whose e4m3 scales count in units of `NVFP4_GLOBAL`."""

    TILED: ClassVar[bool] = True

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """Levels [N, K], two to a byte, and scales [N, K / 16]."""
        return (
            StoredArray(".fp4", ir.DataType.FLOAT4E2M1, shape),
            StoredArray(".fp4_scales", ir.DataType.FLOAT8E4M3FN, (shape[0], shape[1] // NVFP4_BLOCK)),
        )

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise rows [n, K], every block on its own."""
        blocks = rows.float().unflatten(1, (-1, NVFP4_BLOCK))
        wanted = blocks.abs().amax(-1) / _FP4_MOST / NVFP4_GLOBAL
        scale = wanted.clamp(max=_FP8_MOST).to(torch.float8_e4m3fn)
        step = scale.float() * NVFP4_GLOBAL
        step = torch.where(step > 0, step, torch.ones_like(step))  # a block too small for its scale is zeros
        levels = blocks / step[..., None]
        nearest = torch.bucketize(levels.abs(), _FP4_MIDDLES).to(torch.uint8)
        return _pack((nearest | ((levels < 0).to(torch.uint8) << 3)).flatten(1)), raw(scale)


def _pack(levels: torch.Tensor) -> Array:
    """Two to a byte along the last axis, the first in the low half."""
    packed: Array = (levels[:, 0::2] | (levels[:, 1::2] << 4)).numpy()
    return packed
