"""Running estimates that a controller decides by: how often guesses stand, and what calls cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

_FORGET, _FORGET_SOON = 0.98, 0.93
"""weight of what was seen so far, per guess: in the whole text, and in this part of it"""
_TRUST = 12.0
"""guesses of this part of the text that count as much as all of the text"""
_BEFORE = 4.0
"""guesses that what was seen in other texts counts as"""
_SURPRISE, _KEPT = 0.01, 0.2
"""first guesses that fail one after the other, with no more than this chance if the share were right, leave this part
of what was seen so far"""
_RECENT, _LOW = 12, 6
"""calls of a width that are remembered, and the part of them, a sixth, that were cheaper than what counts as its cost:
others only ever add to it"""
_FEW, _STALE = 3, 100
"""so few calls may all have been interrupted: they are forgotten after so many of other widths"""


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


class Costs:
    """Seconds of a call by its width: of the cheaper ones of late, since a crowded machine adds to some calls and takes
    from none.
    """

    def __init__(self, certain: Mapping[int, float] | None = None) -> None:
        """`certain` are seconds that need no measuring."""
        self._recent: dict[int, deque[float]] = {}
        self._known = dict(certain or {})
        self._guessed: dict[int, float] = {}
        self._doubtful: dict[int, int] = {}
        """widths of few calls, and the count of all calls at the last of them"""
        self._calls = 0

    def __contains__(self, width: int) -> bool:
        return width in self._known

    def __len__(self) -> int:
        return len(self._known)

    @property
    def widest(self) -> int:
        """Of the widths that ran. Raises `ValueError` before the first."""
        return max(self._known)

    def note(self, width: int, seconds: float) -> None:
        """A call of `width` rows took `seconds`."""
        recent = self._recent.get(width)
        if recent is None:
            recent = self._recent[width] = deque(maxlen=_RECENT)
        recent.append(seconds)
        self._known[width] = sorted(recent)[len(recent) // _LOW]
        self._guessed.clear()
        self._calls += 1
        if len(recent) < _FEW:
            self._doubtful[width] = self._calls
        else:
            self._doubtful.pop(width, None)
        for stale in [
            it for it, last in self._doubtful.items() if self._calls - last > _STALE and len(self._known) > 1
        ]:
            del self._doubtful[stale], self._recent[stale], self._known[stale]

    def of(self, width: int) -> float:
        """Seconds of a call, for a width that never ran from a line through the nearest that did.

        Raises `ValueError` before the first call.
        """
        if width in self._known:
            return self._known[width]
        if width not in self._guessed:
            self._guessed[width] = self._between(width)
        return self._guessed[width]

    def _between(self, width: int) -> float:
        below = max((known for known in self._known if known < width), default=min(self._known))
        above = min((known for known in self._known if known > width), default=max(self._known))
        low, high = self._known[below], self._known[above]
        return low if below == above else low + (high - low) * (width - below) / (above - below)
