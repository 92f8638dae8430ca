"""How wide the next block is, or whether to draft at all: a choice of speed only, the text is the same whatever is chosen.

The adaptive controller maximises expected tokens per second from two running estimates: what a cycle of each width costs on this machine, and how
often each slot's proposal is accepted. When plain decoding wins it still drafts now and then, to notice that the text has become easier, on a
budget: trying never costs more than a small share of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Protocol

PLAIN = 1
"""the width that means: do not draft"""

_BUDGET = 0.02
"""most of the time that drafting may lose against plain decoding"""
_FORGET = 0.98
"""weight of the acceptance seen so far, per drafted cycle"""
_PRIOR, _PRIOR_WEIGHT = 0.5, 1.0
_RECENT = 9
"""cycles of a width whose median is its cost; one that was interrupted does not count for much"""


class Controller(Protocol):
    """Chooses widths and hears what came of them."""

    def width(self, most: int) -> int:
        """Rows of the next block, `PLAIN` or 2 to `most`; `most` below 2 leaves no choice."""
        ...

    def observe(self, width: int, accepted: int, seconds: float) -> None:
        """A cycle of `width` rows took `seconds` in all and `accepted` of its proposals stood."""
        ...


class FixedWidth:
    """Always the same width: for measuring, and for those who know better."""

    def __init__(self, block: int) -> None:
        self.block = block

    def width(self, most: int) -> int:
        return max(min(self.block, most), PLAIN)

    def observe(self, width: int, accepted: int, seconds: float) -> None:
        pass


class AdaptiveWidth:
    """The width with the best expected tokens per second.

    Lives as long as its session: what it learned of the machine and of the drafter serves the next request. Output never depends on it.
    """

    def __init__(self, block: int, widths: Sequence[int] = ()) -> None:
        """`widths` are those to choose of, where not every width up to `block` has an engine."""
        self.block = block
        self._widths = sorted(widths) or list(range(2, block + 1))
        self._reached = [0.0] * (block - 1)
        self._accepted = [0.0] * (block - 1)
        self._seconds: dict[int, deque[float]] = {}
        self._elapsed = 0.0
        self._lost = 0.0
        """seconds that drafting took beyond plain decoding of the same tokens; below zero it is ahead"""

    def width(self, most: int) -> int:
        widths = [width for width in self._widths if width <= most]
        if not widths:
            return PLAIN
        if len(self._seconds) < 2:  # one block and one plain cycle first: nothing is known without them
            return widths[-1] if not self._seconds else PLAIN
        if PLAIN not in self._seconds:
            return PLAIN
        best = max(widths, key=self.rate)
        if self.rate(best) > self.rate(PLAIN):
            return best
        return best if self._lost + self._risk(best) < _BUDGET * self._elapsed else PLAIN

    def observe(self, width: int, accepted: int, seconds: float) -> None:
        self._seconds.setdefault(width, deque(maxlen=_RECENT)).append(seconds)
        self._elapsed += seconds
        if width == PLAIN:
            return
        self._note_acceptance(width - 1, accepted)
        if PLAIN in self._seconds:
            gained = (accepted + 1) * self.cost(PLAIN)
            self._lost = max(self._lost + seconds - gained, -gained)  # a long lead buys no long loss

    def acceptance(self) -> Sequence[float]:
        """Estimated share of accepted proposals by slot, given that the slots before it were."""
        return [(a + _PRIOR * _PRIOR_WEIGHT) / (r + _PRIOR_WEIGHT) for a, r in zip(self._accepted, self._reached, strict=True)]

    def tokens(self, width: int) -> float:
        """Expected tokens of a cycle: 1 + sum over slots of the chance that all proposals up to it stand."""
        expected = stands = 1.0
        for share in self.acceptance()[: width - 1]:
            stands *= share
            expected += stands
        return expected

    def cost(self, width: int) -> float:
        """Seconds of a cycle: the median of recent ones, or a line through the nearest widths that have run."""
        if width in self._seconds:
            return median(self._seconds[width])
        known = sorted(self._seconds)
        below = max((w for w in known if w < width), default=known[0])
        above = min((w for w in known if w > width), default=known[-1])
        if below == above:
            return median(self._seconds[below])
        low, high = median(self._seconds[below]), median(self._seconds[above])
        return low + (high - low) * (width - below) / (above - below)

    def rate(self, width: int) -> float:
        """Expected tokens per second."""
        return self.tokens(width) / self.cost(width)

    def verdict(self) -> str:
        """What it thinks of drafting now, in a sentence."""
        if PLAIN not in self._seconds or len(self._seconds) < 2:
            return "too few cycles to tell whether drafting pays"
        best = max(self._widths, key=self.rate)
        gain, dear = self.rate(best) / self.rate(PLAIN), self.cost(best) / self.cost(PLAIN)
        doing = f"drafting {best} rows" if gain > 1 else "decoding plainly"
        return f"{doing}: a block of {best} is worth {gain:.2f}x plain decoding ({self.tokens(best):.2f} tokens for {dear:.2f} times the cost)"

    def _risk(self, width: int) -> float:
        """Seconds a cycle of `width` loses if nothing is accepted."""
        return self.cost(width) - self.cost(PLAIN)

    def _note_acceptance(self, offered: int, accepted: int) -> None:
        for slot in range(len(self._reached)):
            self._reached[slot] *= _FORGET
            self._accepted[slot] *= _FORGET
        for slot in range(min(accepted + 1, offered)):
            self._reached[slot] += 1
            self._accepted[slot] += slot < accepted
