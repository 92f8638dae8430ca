"""Running estimates that a controller decides by: how often guesses stand, and what calls cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

_FORGET = 0.98
"""weight of what was seen so far, per guess"""
_RECENT = 9
"""calls of a width whose median is its cost; one that was interrupted does not count for much"""
_FEW, _STALE = 3, 100
"""so few calls may all have been interrupted: they are forgotten after so many of other widths"""


class Shares:
    """How often the guess at each slot of a block stands, given that those before it did."""

    def __init__(self, slots: int, prior: float, weight: float = 1.0) -> None:
        """`prior` is believed as if it had been seen `weight` times."""
        self._prior, self._weight = prior, weight
        self._reached, self._stood = [0.0] * slots, [0.0] * slots
        self._tokens: list[float] | None = None

    def __bool__(self) -> bool:
        return self._reached[0] > 0

    def note(self, known: int, stood: int) -> None:
        """Of the first `known` guesses, whose truth has come out, the first `stood` were right."""
        reached, right = self._reached, self._stood
        for slot in range(len(reached)):
            reached[slot] *= _FORGET
            right[slot] *= _FORGET
        for slot in range(min(stood + 1, known, len(reached))):
            reached[slot] += 1
            right[slot] += slot < stood
        self._tokens = None

    def by_slot(self) -> Sequence[float]:
        """The share of each slot."""
        return [(s + self._prior * self._weight) / (r + self._weight) for s, r in zip(self._stood, self._reached, strict=True)]

    def tokens(self) -> Sequence[float]:
        """Expected tokens of a block by the number of its guesses, from none: 1 + sum over slots of the chance that all guesses up to it stand."""
        if self._tokens is None:
            self._tokens = [1.0]
            stands = 1.0
            for share in self.by_slot():
                stands *= share
                self._tokens.append(self._tokens[-1] + stands)
        return self._tokens


class Costs:
    """Seconds of a call by its width: the median of recent ones."""

    def __init__(self, certain: Mapping[int, float] | None = None) -> None:
        """`certain` are seconds that need no measuring."""
        self._recent: dict[int, deque[float]] = {}
        self._medians = dict(certain or {})
        self._guessed: dict[int, float] = {}
        self._doubtful: dict[int, int] = {}
        """widths of few calls, and the count of all calls at the last of them"""
        self._calls = 0

    def __contains__(self, width: int) -> bool:
        return width in self._medians

    def __len__(self) -> int:
        return len(self._medians)

    def note(self, width: int, seconds: float) -> None:
        """A call of `width` rows took `seconds`."""
        recent = self._recent.get(width)
        if recent is None:
            recent = self._recent[width] = deque(maxlen=_RECENT)
        recent.append(seconds)
        self._medians[width] = sorted(recent)[len(recent) // 2]
        self._guessed.clear()
        self._calls += 1
        if len(recent) < _FEW:
            self._doubtful[width] = self._calls
        else:
            self._doubtful.pop(width, None)
        for stale in [it for it, last in self._doubtful.items() if self._calls - last > _STALE and len(self._medians) > 1]:
            del self._doubtful[stale], self._recent[stale], self._medians[stale]

    def of(self, width: int) -> float:
        """Seconds of a call, for a width that never ran from a line through the nearest that did. Raises `ValueError` before the first call."""
        if width in self._medians:
            return self._medians[width]
        if width not in self._guessed:
            self._guessed[width] = self._between(width)
        return self._guessed[width]

    def _between(self, width: int) -> float:
        below = max((known for known in self._medians if known < width), default=min(self._medians))
        above = min((known for known in self._medians if known > width), default=max(self._medians))
        low, high = self._medians[below], self._medians[above]
        return low if below == above else low + (high - low) * (width - below) / (above - below)
