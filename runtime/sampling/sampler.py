"""Drawing the tokens of one answer, each from its row of logits."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import BundleError, UsageError
from .history import History
from .noise import LARGEST, gumbel, noise_of, words_of
from .parameters import Sampling
from .truncation import kept

Row = NDArray[np.float32]

_NEAR = 6.0
"""how far below the largest logit a draw mostly is"""
_SLACK = 1e-3
"""more than float32 rounds such differences by"""


class Sampler:
    """Draws by `Sampling`, one token after the other. What it drew depends on the logits it was given and on nothing
    else: not on how many rows a block had, nor on who proposed them.
    """

    def __init__(self, sampling: Sampling, prompt: Sequence[int], eos_ids: Sequence[int], vocab: int) -> None:
        self.seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
        self._sampling = sampling
        self._history = History(sampling, prompt, eos_ids, vocab)
        self._position = len(prompt)

    def draw(self, logits: Row) -> int:
        """The next token, from its `logits` [vocab]. Raises `UsageError` where bans leave none to choose, and
        `BundleError` where the engine's numbers do.
        """
        row = self._history.edit(logits)
        if not np.isfinite(row.max()):
            raise self._nothing_left(logits)
        token = int(row.argmax()) if self._sampling.greedy else self._by_chance(row)
        self._history.append(token)
        self._position += 1
        return token

    def accept(self, proposals: Sequence[int], rows: Iterable[Row]) -> list[int]:
        """The tokens that follow a block's anchor: proposals while they are what is drawn from their rows, and the
        first draw that differs, or the one behind them all.
        """
        tokens: list[int] = []
        for number, row in enumerate(rows):
            tokens.append(self.draw(row))
            if number == len(proposals) or tokens[-1] != proposals[number]:
                break
        return tokens

    def _nothing_left(self, logits: Row) -> Exception:
        if np.isfinite(logits.max()):
            return UsageError(
                "biases and bans forbid every token",
                where=f"sampling, position {self._position}",
                fix="forbid fewer tokens",
            )
        return BundleError(
            "the target's logits are not finite",
            where=f"position {self._position}",
            why="its engine computes wrong numbers",
            fix="build the bundle again",
        )

    def _by_chance(self, row: Row) -> int:
        scores = row / np.float32(self._sampling.temperature)
        ids = kept(scores, self._sampling)
        return self._among_all(scores) if ids is None else self._among(scores, ids)[0]

    def _among_all(self, scores: Row) -> int:
        """The draw among all tokens. Noise of the most probable ones first: few others can then still have it."""
        largest = float(scores.max())
        token, value = self._among(scores, np.flatnonzero(scores >= np.float32(largest - _NEAR)))
        rest = np.flatnonzero((scores > np.float32(value - LARGEST - _SLACK)) & (scores < np.float32(largest - _NEAR)))
        if not len(rest):
            return token
        words = words_of(self.seed, self._position, rest)
        # Noise above d needs a uniform number above exp(-exp(-d)), which is more than 1 - exp(-d).
        chance = np.exp(scores[rest] - np.float32(value - _SLACK))
        possible = words >= (1 - chance.astype(np.float64)) * 2.0**32
        others, noise = rest[possible], noise_of(words[possible])
        if not len(others):
            return token
        other, other_value = _best(scores, others, noise)
        return other if (other_value, -other) > (value, -token) else token

    def _among(self, scores: Row, ids: NDArray[np.int64]) -> tuple[int, float]:
        return _best(scores, ids, gumbel(self.seed, self._position, ids))


def _best(scores: Row, ids: NDArray[np.int64], noise: NDArray[np.float64]) -> tuple[int, float]:
    """The token of `ids` with the largest sum of logit and noise, and that sum; the first of equal ones."""
    sums = scores[ids] + noise
    best = int(sums.argmax())
    return int(ids[best]), float(sums[best])
