"""How often guesses are accepted, as a running estimate."""

from __future__ import annotations

from collections.abc import Sequence

_FORGET, _FORGET_SOON = 0.98, 0.93
"""weight of what was seen so far, per guess: in the whole text, and in this part of it"""
_TRUST = 12.0
"""guesses of this part of the text that count as much as all of the text"""
_BEFORE = 4.0
"""guesses that what was seen in other texts counts as"""
_SURPRISE, _KEPT = 0.01, 0.2
"""first guesses that fail one after the other, with no more than this chance if the share were right, leave this part
of what was seen so far"""


class Shares:
    """How often the guess at each slot of a block stands, given that those before it did."""

    def __init__(self, slots: int, prior: float, weight: float = 1.0, *, alike: bool = False) -> None:
        """`prior` is believed as if it had been seen `weight` times; where slots are `alike`, of the first only, and of
        others the share before them.
        """
        self._prior, self._weight, self._alike = prior, weight, alike
        self._reached, self._stood = [0.0] * slots, [0.0] * slots
        self._reached_soon, self._stood_soon = [0.0] * slots, [0.0] * slots
        self._tokens: list[float] | None = None
        self._chance = 1.0
        """of all first guesses since the last right one failing"""

    def __bool__(self) -> bool:
        return self._reached[0] > 0

    def begin(self) -> None:
        """Another text begins: what was seen so far counts as `_BEFORE` guesses at most, and none of it as lately
        seen.
        """
        self._chance = 1.0
        self._reached_soon, self._stood_soon = [0.0] * len(self._reached), [0.0] * len(self._reached)
        for slot, reached in enumerate(self._reached):
            if reached > _BEFORE:
                self._reached[slot], self._stood[slot] = _BEFORE, self._stood[slot] * _BEFORE / reached

    def note(self, known: int, stood: int) -> None:
        """Of the first `known` guesses, whose truth has come out, the first `stood` were right."""
        self._chance = 1.0 if stood or not known else self._chance * (2.0 - self.tokens()[1])
        if self._chance < _SURPRISE:
            self._chance = 1.0
            for counts in (self._reached, self._stood, self._reached_soon, self._stood_soon):
                counts[:] = [_KEPT * count for count in counts]
        for reached, right, forget in (
            (self._reached, self._stood, _FORGET),
            (self._reached_soon, self._stood_soon, _FORGET_SOON),
        ):
            for slot in range(len(reached)):
                reached[slot] *= forget
                right[slot] *= forget
            for slot in range(min(stood + 1, known, len(reached))):
                reached[slot] += 1
                right[slot] += slot < stood
        self._tokens = None

    def by_slot(self) -> Sequence[float]:
        """The share of each slot."""
        shares, prior = [], self._prior
        for counts in zip(self._reached, self._stood, self._reached_soon, self._stood_soon, strict=True):
            reached, stood, reached_soon, stood_soon = counts
            whole = (stood + prior * self._weight) / (reached + self._weight)
            shares.append((stood_soon + whole * _TRUST) / (reached_soon + _TRUST))
            prior = shares[-1] if self._alike else prior
        return shares

    def tokens(self) -> Sequence[float]:
        """Expected tokens of a block by the number of its guesses, from none: 1 + sum over slots of the chance that all
        guesses up to it stand.
        """
        if self._tokens is None:
            self._tokens = [1.0]
            stands = 1.0
            for share in self.by_slot():
                stands *= share
                self._tokens.append(self._tokens[-1] + stands)
        return self._tokens
