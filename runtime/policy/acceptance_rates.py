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


class AcceptanceRates:
    """How often the guess at each slot of a block is accepted, given that those before it were."""

    def __init__(self, slots: int, prior: float, weight: float = 1.0, *, shared_rate: bool = False) -> None:
        """`prior` is believed as if it had been seen `weight` times; with a `shared_rate`, of the first only, and of
        others the share before them.
        """
        self._prior, self._weight, self._shared_rate = prior, weight, shared_rate
        self._observed, self._accepted = [0.0] * slots, [0.0] * slots
        self._observed_soon, self._accepted_soon = [0.0] * slots, [0.0] * slots
        self._tokens: list[float] | None = None
        self._chance = 1.0
        """of all first guesses since the last right one failing"""

    def __bool__(self) -> bool:
        return self._observed[0] > 0

    def begin(self) -> None:
        """Another text begins: what was seen so far counts as `_BEFORE` guesses at most, and none of it as recent."""
        self._chance = 1.0
        self._observed_soon, self._accepted_soon = [0.0] * len(self._observed), [0.0] * len(self._observed)
        for slot, observed in enumerate(self._observed):
            if observed > _BEFORE:
                self._observed[slot], self._accepted[slot] = _BEFORE, self._accepted[slot] * _BEFORE / observed

    def note(self, observed: int, accepted: int) -> None:
        """Of the first `observed` guesses, whose truth has come out, the first `accepted` were right."""
        self._chance = 1.0 if accepted or not observed else self._chance * (2.0 - self.tokens()[1])
        if self._chance < _SURPRISE:
            self._chance = 1.0
            for counts in (self._observed, self._accepted, self._observed_soon, self._accepted_soon):
                counts[:] = [_KEPT * count for count in counts]
        for seen, right, forget in (
            (self._observed, self._accepted, _FORGET),
            (self._observed_soon, self._accepted_soon, _FORGET_SOON),
        ):
            for slot in range(len(seen)):
                seen[slot] *= forget
                right[slot] *= forget
            for slot in range(min(accepted + 1, observed, len(seen))):
                seen[slot] += 1
                right[slot] += slot < accepted
        self._tokens = None

    def by_slot(self) -> Sequence[float]:
        """The share of each slot."""
        shares, prior = [], self._prior
        for counts in zip(self._observed, self._accepted, self._observed_soon, self._accepted_soon, strict=True):
            observed, accepted, observed_soon, accepted_soon = counts
            whole = (accepted + prior * self._weight) / (observed + self._weight)
            shares.append((accepted_soon + whole * _TRUST) / (observed_soon + _TRUST))
            prior = shares[-1] if self._shared_rate else prior
        return shares

    def tokens(self) -> Sequence[float]:
        """Expected tokens of a block by the number of its guesses, from none: 1 + sum over slots of the chance that all
        guesses up to it are accepted.
        """
        if self._tokens is None:
            self._tokens = [1.0]
            all_accepted = 1.0
            for share in self.by_slot():
                all_accepted *= share
                self._tokens.append(self._tokens[-1] + all_accepted)
        return self._tokens
