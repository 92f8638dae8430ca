"""Which tokens a draw is among: top-k, top-p and min-p of a row of logits, without sorting the whole row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .parameters import Sampling

Row = NDArray[np.float32]
Ids = NDArray[np.int64]

_STEPS = (4.0, 8.0, 16.0)
"""how far below the largest logit the tokens that matter mostly lie"""


def kept(scores: Row, sampling: Sampling) -> Ids | None:
    """The ids that `top_k`, `top_p` and `min_p` leave of `scores` [vocab], which are divided by the temperature
    already, in ascending order; None where they leave all.

    As in transformers: as many tokens as share the k-th place stay; of equally probable ones at the edge of the nucleus
    those with the smaller ids do; the most probable one always does.
    """
    largest = float(scores.max())
    ids = _largest(scores, largest, sampling.top_k) if 0 < sampling.top_k < len(scores) else None
    if sampling.top_p < 1:
        ids = _nucleus(scores, largest, ids, sampling.top_p)
    if sampling.min_p > 0:
        ids = _at_least(scores, largest, ids, sampling.min_p)
    return ids


def _largest(scores: Row, largest: float, count: int) -> Ids:
    for ids in _near(scores, largest):
        if len(ids) >= count:
            near = scores[ids]
            among: Ids = ids[near >= np.partition(near, len(near) - count)[len(near) - count]]
            return among
    raise AssertionError("the last of them are all")


def _nucleus(scores: Row, largest: float, ids: Ids | None, mass: float) -> Ids:
    given = scores if ids is None else scores[ids]
    chances = np.exp(given - np.float32(largest))
    wanted = mass * float(chances.sum(dtype=np.float64))
    for near in _near(given, largest):
        order = near[np.argsort(-given[near], kind="stable")]
        above = np.cumsum(chances[order], dtype=np.float64)
        if above[-1] >= wanted or len(near) == len(given):
            # A token stays while those before it are too few.
            stay = np.sort(order[: 1 + int(np.searchsorted(above[:-1], wanted, side="left"))])
            return stay if ids is None else ids[stay]
    raise AssertionError("the last of them are all")


def _at_least(scores: Row, largest: float, ids: Ids | None, share: float) -> Ids:
    given = scores if ids is None else scores[ids]
    stay = np.flatnonzero(np.exp(given - np.float32(largest)) >= np.float32(share))
    return stay if ids is None else ids[stay]


def _near(scores: Row, largest: float) -> Iterator[Ids]:
    """Ids of ever more tokens, the largest logits first; all in the end."""
    for step in _STEPS:
        yield np.flatnonzero(scores >= np.float32(largest - step))
    yield np.arange(len(scores))
