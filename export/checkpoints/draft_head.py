"""A reduced draft head that is rows of the target's own: a drafter then ships without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..parameter_names import EMBEDDING, HEAD
from .checkpoint import DrafterCheckpoint, TargetCheckpoint, TensorSource
from .safetensors_source import check_rows

# Rows of the target's head read at once, of which the chosen ones are kept.
_WINDOW = 4096


class SelectedRows:
    """A drafter's tensors and, as `HEAD`, chosen rows of a tensor of the target's."""

    def __init__(self, drafter: TensorSource, target: TensorSource, tensor: str, ids: Sequence[int]) -> None:
        """`ids` are rows of the target's `tensor` [V, H], in the order of the head's rows."""
        self._drafter, self._target, self._tensor = drafter, target, tensor
        self._ids = torch.tensor(ids, dtype=torch.int64)
        self._shape = (len(ids), *target.shapes()[tensor][1:])

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Name and shape of the drafter's tensors and of the head."""
        return {**self._drafter.shapes(), HEAD: self._shape}

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop`; those of the head in the dtype of the target's. Holds a window of the target's head at a
        time.

        Raises `CheckpointError` for a name or rows that are not there.
        """
        if name != HEAD:
            return self._drafter.rows(name, start, stop)
        check_rows(self.shapes(), name, start, stop)
        wanted, order = self._ids[start:stop].sort()
        parts, done = [], 0
        while done < len(wanted):
            first = int(wanted[done])
            end = int(torch.searchsorted(wanted, first + _WINDOW))
            parts.append(self._target.rows(self._tensor, first, int(wanted[end - 1]) + 1)[wanted[done:end] - first])
            done = end
        found = torch.cat(parts) if parts else self._target.rows(self._tensor, 0, 0)
        return found[order.argsort()]


def drafter_tensors(drafter: DrafterCheckpoint, target: TargetCheckpoint) -> TensorSource:
    """The tensors that the drafter's graphs are made of: its own and, where it ships no head of its reduced vocabulary,
    the target's rows.
    """
    if drafter.vocabulary is None or HEAD in drafter.tensors.shapes():
        return drafter.tensors
    return SelectedRows(
        drafter.tensors, target.tensors, EMBEDDING if target.spec.tied else HEAD, drafter.vocabulary.ids
    )
