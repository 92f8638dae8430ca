"""Block quantisation in MatMulNBits' layout: int8 symmetric around 128, int4 with a zero point per block.

At 4 bits a block's range is narrowed where that loses less than it clips, as in llama.cpp's k-quants and others: a
sixth of the squared error of weights in blocks of 64, a quarter in blocks of 32, for five times the work.

The layout, data [N, blocks, block * bits / 8], scales [N, blocks] and packed zero points [N, ceil(blocks / 2)], is
documented with the operator in ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
import torch

from ..graphs.encoding import Array, Shape, StoredArray
from .options import GROUPS

_BLOCKS = (256, 128, 64, 32, 16)
_FILL = 8
"""the last block of a row may stay empty as far as it adds one number in this many to it"""

_NARROWER = (0.95, 0.9, 0.85, 0.8)
"""shares of a block's range that 4 bits are also tried on"""


def block_for(width: int, most: int = GROUPS[0]) -> int | None:
    """The largest block up to `most` that rows of `width` numbers fill, or nearly; None where no supported size
    fits.
    """
    fitting = (block for block in _BLOCKS if block <= most and -width % block * _FILL <= width)
    return None if width % _BLOCKS[-1] else next(fitting, None)


@dataclass(frozen=True)
class IntGroups:
    """A weight [N, K] in blocks of `block` numbers along K, each `bits` wide (8 or 4).

    The last block of a row is filled up with zeros.
    """

    TILED: ClassVar[bool] = True
    bits: int
    block: int

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """Quantised data, scales and, for 4 bits, zero points."""
        n, k = shape
        blocks = -(-k // self.block)
        data = StoredArray(f".int{self.bits}", ir.DataType.UINT8, (n, blocks, self.block * self.bits // 8))
        scales = StoredArray(".scales", ir.DataType.FLOAT, (n, blocks))
        zeros = StoredArray(".zeros", ir.DataType.UINT8, (n, (blocks + 1) // 2))
        return (data, scales) if self.bits == 8 else (data, scales, zeros)

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise rows [n, K]; rounding to nearest, every block on its own."""
        blocks = pad_to_groups(rows.to(torch.float32), self.block)
        return _symmetric8(blocks) if self.bits == 8 else _asymmetric4(blocks)

    def decode(self, parts: tuple[Array, ...]) -> torch.Tensor:
        """The float32 rows that the parts stand for, [n, K] and what fills up their last block."""
        data, scales = torch.from_numpy(parts[0]), torch.from_numpy(parts[1])[..., None]
        if self.bits == 8:
            return ((data.float() - 128) * scales).flatten(1)
        zeros = _unpack4(torch.from_numpy(parts[2]))[:, : scales.shape[1], None]
        return ((_unpack4(data).float() - zeros) * scales).flatten(1)


def pad_to_groups(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Rows [n, K] as blocks [n, blocks, block].

    Zeros, which fill up the last one, change no block's range and no rounding.
    """
    filled = torch.nn.functional.pad(rows, (0, -rows.shape[1] % block))
    return filled.reshape(len(rows), -1, block)


def _safe(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def _symmetric8(blocks: torch.Tensor) -> tuple[Array, ...]:
    scale = _safe(blocks.abs().amax(-1) / 127)
    levels = torch.round(blocks / scale[..., None]).clamp_(-127, 127) + 128
    return levels.to(torch.uint8).numpy(), scale.numpy()


def _asymmetric4(blocks: torch.Tensor) -> tuple[Array, ...]:
    return packed4(*fitted4(blocks))


def packed4(scale: torch.Tensor, zero: torch.Tensor, levels: torch.Tensor) -> tuple[Array, ...]:
    """Data, scales and zero points as they are stored, of what `fitted4` gives."""
    return _pack4(levels.to(torch.uint8)).numpy(), scale.numpy(), _pack4(zero.to(torch.uint8)).numpy()


def fitted4(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales [n, blocks], zero points [n, blocks] and levels [n, blocks, block], float32, of blocks at four bits.

    The narrowing of every block's range that loses least in the mean square, with the scale that fits its levels best.
    """
    low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
    scale, zero, levels, gain = _fit4(blocks, low, high)
    for narrower in _NARROWER:
        fit = _fit4(blocks, low * narrower, high * narrower)
        better = fit[3] > gain
        scale, zero, gain = (
            torch.where(better, new, old) for new, old in ((fit[0], scale), (fit[1], zero), (fit[3], gain))
        )
        levels = torch.where(better[..., None], fit[2], levels)
    return scale, zero, levels


def _fit4(
    blocks: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scale, zero point, levels, and what their best scale takes off the squared error, for a range of `low` to `high`
    in 16 steps.

    With levels c (less the zero point) the error of scale s is |w|^2 - 2 s wc + s^2 cc: least at s = wc / cc, and there
    less by wc^2 / cc.
    """
    step = _safe((high - low) / 15)
    zero = torch.round(-low / step).clamp_(0, 15)
    levels = (torch.round(blocks / step[..., None]) + zero[..., None]).clamp_(0, 15)
    centred = levels - zero[..., None]
    both, square = (blocks * centred).sum(-1), _safe((centred * centred).sum(-1))
    return torch.where(both > 0, both / square, step), zero, levels, both * both / square


def _pack4(levels: torch.Tensor) -> torch.Tensor:
    """Two to a byte along the last axis, the first in the low half; an odd count is padded with a zero."""
    if levels.shape[-1] % 2:
        levels = torch.nn.functional.pad(levels, (0, 1))
    return levels[..., 0::2] | (levels[..., 1::2] << 4)


def _unpack4(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
