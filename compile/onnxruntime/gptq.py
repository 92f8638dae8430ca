"""Four bits rounded for what the weights are multiplied with: GPTQ (Frantar et al., 2023, arXiv 2210.17323).

Columns are rounded one after the other, and what each loses is made up for in those still to come, as far as the inputs
of the layer go together. Scales and zero points of a block are fitted to what its weights have become by then. The
layout is that of `quantize.IntGroups`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from ..graphs.encoding import Array
from .hessians import Hessians
from .quantize import IntGroups, fitted4, packed4, pad_to_groups

_PANEL = 64
"""columns whose losses reach the rest of the row in one product"""


@dataclass(frozen=True)
class GptqGroups(IntGroups):
    """`IntGroups` of four bits of the checkpoint's `tensor`, rounded for the inputs that `hessians` knows."""

    TILED: ClassVar[bool] = False  # columns are rounded one by one, whatever the number of rows
    tensor: str = ""
    hessians: Hessians | None = field(default=None, repr=False)

    def encode(self, rows: torch.Tensor) -> tuple[Array, ...]:
        """Quantise rows [n, K], each on its own; every block on its own where nothing is known of the inputs."""
        factor = None if self.hessians is None else self.hessians.factor(self.tensor)
        return super().encode(rows) if factor is None else packed4(*_rounded(rows.float(), factor, self.block))


def _rounded(rows: torch.Tensor, factor: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales, zero points and levels of `rows` [n, K], as `fitted4` gives them.

    `factor` [K, K]: see `Hessians.factor`.
    """
    rest, width = rows.clone(), rows.shape[1]
    scales, zeros, levels = [], [], []
    for start in range(0, width, block):
        stop = min(start + block, width)
        scale, zero, _ = fitted4(pad_to_groups(rest[:, start:stop], block))
        scales.append(scale)
        zeros.append(zero)
        chosen = [
            _panel(rest, factor, scale[:, 0], zero[:, 0], panel, min(panel + _PANEL, stop))
            for panel in range(start, stop, _PANEL)
        ]
        # What fills up the last block stands for zero.
        levels.append(torch.cat([*chosen, zero.expand(-1, block - (stop - start))], 1))
    return torch.cat(scales, 1), torch.cat(zeros, 1), torch.stack(levels, 1)


def _panel(
    rest: torch.Tensor, factor: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, start: int, stop: int
) -> torch.Tensor:
    """Levels [n, stop - start] of these columns of `rest`; takes what they lose out of the columns behind them."""
    columns = rest[:, start:stop].T.contiguous()  # each in one piece: one by one they are read and written many times
    levels, errors = torch.empty_like(columns), torch.empty_like(columns)
    for number, column in enumerate(columns):
        weights = factor[start + number, start + number : stop]
        level = torch.div(column, scale).round_().add_(zero).clamp_(0, 15)
        error = column.sub_((level - zero).mul_(scale)).div_(weights[0])
        columns[number + 1 :] -= weights[1:, None] * error
        levels[number], errors[number] = level, error
    rest[:, stop:].addmm_(errors.T, factor[start:stop, stop:], alpha=-1)
    return levels.T
