"""Drafted blocks whose drafter says how sure it is: which rows of one to verify, and what recent blocks gave, by
the width they were drafted at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from .confidence import Calibration

_FORGET = 0.95
"""weight of earlier blocks, per block"""
_BEFORE = 2.0
"""blocks that those of other texts count as, at most"""

Confidence = Callable[[int], float]
"""the probability, from 0 to 1, that the drafter gives its proposal at a slot"""


class Blocks:
    """Running means of tokens and rows. False while there was no block.

    A block may be drafted wider than it is worth verifying: which of its rows are shows only in what the drafter says
    of them.
    """

    def __init__(self, widths: Sequence[int]) -> None:
        """`widths`, in order, are those that blocks are drafted and verified at."""
        self._widths, self._calibration = widths, Calibration()
        self._reported, self._block = list[float](), list[tuple[int, int, float]]()
        """of the block that is being verified: the confidence that the drafter reported, as far as it was asked, and by
        width, had it been drafted as wide, how many rows were best and the tokens that they promised"""
        self._weight = 0.0
        self._tokens = dict.fromkeys(widths, 0.0)
        self._rows: dict[int, dict[int, float]] = {width: {} for width in widths}

    def __bool__(self) -> bool:
        return self._weight > 0

    def begin(self) -> None:
        """Another text begins."""
        self._reported, self._block = [], []
        if self._weight > _BEFORE:
            self._scale(_BEFORE / self._weight)

    def choose_verify_rows(self, drafted: int, confidence: Confidence, costs_in_tokens: Sequence[float]) -> int:
        """How many rows of a block of `drafted` rows, one of the widths, to verify: those whose expected tokens are
        most beyond their cost.

        `costs_in_tokens` are of all widths, in order; those beyond `drafted` serve to say what a wider draft would have
        been worth. `confidence` is asked for slots that a choice could pay for, no others. Raises `ValueError` for
        another number of costs.
        """
        self._reported, self._block = [], []
        # Of the slots seen so far: expected tokens, the probability that all are accepted, that of the last, and their
        # number.
        tokens, all_accepted, share, slots = 1.0, 1.0, 1.0, 0
        # Of the best choice so far: tokens beyond its cost, rows and tokens; and the rows of the best one that was
        # drafted.
        most, rows, promised, chosen = -inf, drafted, 0.0, drafted
        for width, cost in zip(self._widths, costs_in_tokens, strict=True):
            # Even if all that follow were certain to be accepted: in this choice, or in the widest.
            if (
                max(
                    all_accepted * (width - slots) - cost,
                    all_accepted * (self._widths[-1] - slots) - costs_in_tokens[-1],
                )
                + tokens
                - all_accepted
                > most
            ):
                while slots < width - 1:
                    if slots < drafted - 1:
                        self._reported.append(reported := confidence(slots))
                        share = self._calibration.of(reported)
                    all_accepted *= share  # what was not drafted is as sure as the last that was
                    tokens += all_accepted
                    slots += 1
                if tokens - cost > most:
                    most, rows, promised = tokens - cost, width, tokens
            self._block.append((width, rows, promised))
            if width <= drafted:
                chosen = rows
        return chosen

    def note(self, verified: int, accepted: int) -> None:
        """Of the block that was narrowed last so many rows were `verified` and so many proposals `accepted`. Does
        nothing where none was.

        What a block promised counts half and what came of it half: the one varies less, the other is the truth.
        """
        if not self._block:
            return
        self._scale(_FORGET)
        self._weight += 1
        for width, rows, tokens in self._block:
            told = accepted < verified - 1 or rows <= verified
            came = min(accepted + 1, rows) if told else max(tokens, accepted + 1)
            self._tokens[width] += (tokens + came) / 2
            self._rows[width][rows] = self._rows[width].get(rows, 0.0) + 1
        for slot, reported in enumerate(self._reported[: min(accepted + 1, verified - 1)]):
            self._calibration.note(reported, slot < accepted)
        self._reported, self._block = [], []

    def tokens(self, width: int) -> float:
        """Expected tokens of a block drafted `width` wide.

        Raises `KeyError` for no width of these, `ZeroDivisionError` before the first block.
        """
        return self._tokens[width] / self._weight

    def mean(self, width: int, cost: Callable[[int], float]) -> float:
        """Mean of `cost`, a function of rows, over the rows of such blocks that were worth verifying.

        Raises as `tokens` does.
        """
        return sum(weight * cost(rows) for rows, weight in self._rows[width].items()) / self._weight

    def _scale(self, by: float) -> None:
        self._weight *= by
        for width, rows in self._rows.items():
            self._tokens[width] *= by
            for count in rows:
                rows[count] *= by
