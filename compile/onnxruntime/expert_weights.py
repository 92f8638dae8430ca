"""Which form mixtures of experts take in ONNX Runtime's engines, and how their weights are stored.

Its operator for experts in blocks of integers (QMoE) gives a row the same bits whatever rows come with it, in blocks of
up to 64 at eight bits and of up to 32, with integer products, at four. The one in float32 (MoE) does not, nor does QMoE
at four bits with float products: draft-verify would not equal plain decoding. At `fp32`, experts therefore run densely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir
import torch

from ..graphs.encoding import Array, Shape, StoredArray
from .precision import Precision

_BLOCKS = {8: (64, 32, 16), 4: (32, 16)}
"""blocks in which rows do not depend on one another, the largest first, by bits"""


@dataclass(frozen=True)
class ExpertGroups:
    """Weights [E, N, K] of experts in blocks of `block` numbers along K, symmetric around the middle of `bits`; stored
    by rows of N whatever the layout.
    """

    TILED: ClassVar[bool] = True
    bits: int
    block: int
    transposed: bool = False
    """the tensor is [E, K, N]"""
    halves: bool = False
    """rows come as two halves, and are stored by turns"""

    def parts(self, shape: Shape) -> tuple[StoredArray, ...]:
        """Quantised data and scales."""
        experts, n, k = (shape[0], shape[2], shape[1]) if self.transposed else shape
        data = StoredArray(f".int{self.bits}", ir.DataType.UINT8, (experts, n, k * self.bits // 8))
        return data, StoredArray(".scales", ir.DataType.FLOAT, (experts, n, k // self.block))

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise whole experts [e, …]; rounding to nearest, every block on its own."""
        weights = rows.to(torch.float32)
        weights = weights.transpose(1, 2) if self.transposed else weights
        if self.halves:
            weights = torch.stack(weights.chunk(2, 1), 2).flatten(1, 2)
        blocks = weights.unflatten(2, (-1, self.block))
        middle = 1 << (self.bits - 1)
        scale = blocks.abs().amax(-1) / (middle - 1)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        levels = (torch.round(blocks / scale[..., None]) + middle).clamp_(1, 2 * middle - 1).to(torch.uint8).flatten(2)
        packed = levels if self.bits == 8 else levels[..., 0::2] | (levels[..., 1::2] << 4)
        return packed.contiguous().numpy(), scale.contiguous().numpy()


def expert_blocks(config: Any, precision: Precision) -> ExpertGroups | None:
    """How the experts of a target are stored where they run in the sparse form; None where they run densely, or where
    there are none.

    `config` is the transformers configuration of the text decoder.
    """
    widths = _widths(config)
    if precision.linear_bits is None or widths is None:
        return None
    return blocks_of(*widths, precision.linear_bits)


def blocks_of(hidden: int, inner: int, bits: int) -> ExpertGroups | None:
    """Blocks that divide both widths of an expert."""
    block = next((block for block in _BLOCKS[bits] if hidden % block == 0 and inner % block == 0), None)
    return None if block is None else ExpertGroups(bits, block)


def _widths(config: Any) -> tuple[int, int] | None:
    """Columns that an expert takes in, and columns between its products."""
    experts = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None)
    if not experts:
        return None
    hidden = getattr(config, "moe_hidden_size", None) or config.hidden_size
    return hidden, getattr(config, "moe_intermediate_size", None) or config.intermediate_size


def form_of(experts: int, used: int, blocks: ExpertGroups | None) -> str | None:
    """The form in words, or None for a target without experts."""
    if not experts:
        return None
    if blocks is None:
        return (
            f"dense: all {experts} experts of a layer run on every token, not the {used} that are chosen; their weights"
            " stay in float32"
        )
    return (
        f"sparse: of the {experts} experts of a layer, only the {used} that a token chooses are read; int{blocks.bits}"
        f" in blocks of {blocks.block}"
    )
