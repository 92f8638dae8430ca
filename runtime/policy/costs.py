"""What calls cost, as a running estimate."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

_RECENT, _LOW = 12, 6
"""calls of a width that are remembered, and the part of them, a sixth, that were cheaper than what counts as its cost:
others only ever add to it"""
_FEW, _STALE = 3, 100
"""so few calls may all have been interrupted: they are forgotten after so many of other widths"""


class Costs:
    """Seconds of a call by its width: of the cheaper recent ones, since a crowded machine adds to some calls and takes
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
