"""Second moments X^T X of rows X [·, K], and the factor of their damped inverse that GPTQ rounds with."""

from __future__ import annotations

import torch

_PANEL = 1024
"""columns of a panel"""
_DAMPING = 0.01
"""share of their mean added to the squares: directions that the text hardly has must not be free"""


class Hessian:
    """X^T X [K, K] in float32, as panels of rows from the diagonal to the right: the rest mirrors them."""

    def __init__(self, width: int) -> None:
        self._width = width
        self.panels = {start: torch.zeros(min(_PANEL, width - start), width - start) for start in _starts(width)}
        """by their first row"""

    def add(self, rows: torch.Tensor) -> None:
        """Count rows [n, K], float32."""
        for start, panel in self.panels.items():
            panel.addmm_(rows[:, start : start + _PANEL].T, rows[:, start:])

    @property
    def finite(self) -> bool:
        """Whether all of them are numbers."""
        return all(bool(panel.isfinite().all()) for panel in self.panels.values())

    def factor(self) -> torch.Tensor:
        """U [K, K], upper triangular, float32, with U^T U = (X^T X + damping)^-1; computed in float64, in one matrix
        of it.
        """
        damping = _DAMPING * self._mean_square() + torch.finfo(torch.float32).tiny
        matrix = torch.zeros(self._width, self._width, dtype=torch.float64)
        # From the last column to the first: of a Cholesky factor L of that, L^-1 turned round again is U.
        lower = matrix.mT
        while not _cholesky_(self._reversed_into(lower, damping)):
            damping *= 10  # the sums are rounded: of inputs that all but go together, more than was added
        _invert_lower_(lower)
        factor = torch.empty(self._width, self._width)
        for start in _starts(self._width):
            rows = lower[max(0, self._width - start - _PANEL) : self._width - start]
            factor[start : start + _PANEL] = rows.flip(0, 1)
        return factor

    def _mean_square(self) -> float:
        return sum(float(panel.diagonal().double().sum()) for panel in self.panels.values()) / self._width

    def _reversed_into(self, lower: torch.Tensor, damping: float) -> torch.Tensor:
        """The lower half of the damped moments, last column first, in `lower` [K, K]."""
        for start, panel in self.panels.items():
            stop = self._width - start
            lower[stop - len(panel) : stop, :stop] = panel.flip(0, 1)
        lower.diagonal().add_(damping)
        return lower


def _starts(width: int) -> range:
    return range(0, width, _PANEL)


def _cholesky_(matrix: torch.Tensor) -> bool:
    """Put the Cholesky factor of `matrix`, whose lower half is read, in its place; whether there is one.

    LAPACK works in place where columns are contiguous.
    """
    failed = torch.empty((), dtype=torch.int32)
    torch.linalg.cholesky_ex(matrix, out=(matrix, failed))
    return not failed


def _invert_lower_(matrix: torch.Tensor) -> None:
    """Put the inverse of the lower triangular `matrix` in its place, block by block."""
    starts = _starts(len(matrix))
    for start in reversed(starts):
        stop = start + _PANEL
        block = matrix[start:stop, start:stop]
        inverse = torch.linalg.solve_triangular(block, torch.eye(len(block), dtype=matrix.dtype), upper=False)
        # What is below and to the right was inverted before. From the last rows up: each is made of those above it.
        for low in reversed(starts[start // _PANEL + 1 :]):
            rows = matrix[low : low + _PANEL]
            rows[:, start:stop] = -(rows[:, stop : low + _PANEL] @ matrix[stop : low + _PANEL, start:stop]) @ inverse
        block.copy_(inverse)
