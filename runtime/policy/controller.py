"""How wide the next block is, and who guesses it: the drafter, prompt lookup, or nobody. A choice of speed
only, the text is the same.

The adaptive controller maximises expected tokens per second from running estimates: what calls cost on this machine,
how often the drafter's proposals are accepted, and how often those of prompt lookup are after a match of this length.
Prompt lookup is judged by every cycle, whoever guessed in it; the drafter has to draft for that. So when it does not
pay it still drafts now and then, to notice that the text has become easier, on a budget: trying never costs more than a
small share of the time. Where the drafter reports its confidence, a block is drafted wider than it may be worth
verifying, and only the rows that promise enough are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

from ..engines import Engines
from .acceptance_rates import AcceptanceRates
from .costs import Costs
from .verify_rows import Blocks, Confidence

PLAIN = 1
"""the width that means: do not draft"""

_BUDGET = 0.02
"""share of the time without the drafter that may be reserved for trials of it, so that they never lose more"""
_SAVED_UP = 2
"""trials that time is reserved for"""
_PATIENCE = 4
"""cycles without the drafter before one of them may be a trial"""
_ROW, _EXPENSIVE_ROW = 0.08, 0.3
"""what a row is thought to cost, in plain steps, while nothing so wide was verified; and at most, if the prompt says
more"""
_CAREFUL = 24
"""first cycles of a session that believe the prompt: it also set things up, and what is not tried is never known"""
_PRIOR = 0.5
"""share of the drafter's proposals that are accepted, before any was seen"""
_MATCHES = ((1, 0.25), (2, 0.5), (3, 0.7), (5, 0.75), (8, 0.9))
"""shortest match of each class, and the share of its guesses that are accepted, before any was seen: measured on the
prompt suites"""


class CyclePlan(NamedTuple):
    """The next cycle."""

    width: int
    """rows: of a drafted block those to draft, of which `Controller.choose_verify_rows` may leave some unverified; else
    those to verify, at least. `PLAIN`: as few as there can be, of which those behind the anchor cost nothing and may
    hold guesses"""
    drafted: bool
    """by the drafter; else prompt lookup fills the rows behind the anchor"""
    trial: bool = False
    """drafted to learn how often proposals are accepted now, where another cycle promises more"""


class Controller(Protocol):
    """Chooses and hears what came of it."""

    def begin(self) -> None:
        """Another answer begins."""
        ...

    def prefilled(self, rows: int, seconds: float) -> None:
        """A piece of a prompt, `rows` rows wide, took the target `seconds`."""
        ...

    def plan(self, most: int, match: int) -> CyclePlan:
        """The next cycle, of at most `most` rows; below 2 it leaves no choice.

        The text ends in a match of `match` tokens.
        """
        ...

    def choose_verify_rows(self, plan: CyclePlan, confidence: Confidence) -> int:
        """How many rows of the block that was drafted by `plan` to verify, from 2 to all.

        Asked once a cycle, between `plan` and `observe`, where the drafter reports its confidence; `confidence` serves
        until it returns.
        """
        ...

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        """A cycle by `plan` took `seconds` in all, of which verifying took `verify_seconds` (all, where it is one
        step).

        `accepted` of its guesses were: of those in the rows that the last `choose_verify_rows` chose, if it was asked.
        """
        ...

    def note_lookup(self, match: int, observed: int, accepted: int) -> None:
        """After a match of `match` tokens the first `observed` guesses met the truth, whether they were used or not,
        and the first `accepted` were right.
        """
        ...


class FixedWidth:
    """Always the same width, drafted: for measuring, and for those who know better."""

    def __init__(self, block: int) -> None:
        self.block = block

    def begin(self) -> None:
        pass

    def prefilled(self, rows: int, seconds: float) -> None:
        pass

    def plan(self, most: int, match: int) -> CyclePlan:
        width = max(min(self.block, most), PLAIN)
        return CyclePlan(width, width > PLAIN)

    def choose_verify_rows(self, plan: CyclePlan, confidence: Confidence) -> int:
        return plan.width

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        pass

    def note_lookup(self, match: int, observed: int, accepted: int) -> None:
        pass


class AdaptiveWidth:
    """The cycle with the best expected tokens per second.

    Lives as long as its session: what it learned of the machine, of the drafter and of look-ups serves the next
    request. Output never depends on it.
    """

    def __init__(self, block: int, widths: Sequence[int] = (), *, narrowest: int = 1, drafter: bool = True) -> None:
        """`widths` are those to choose of, where not every width up to `block` has an engine; `narrowest` is how many
        rows a plain cycle verifies.

        Without a `drafter` every guess is of prompt lookup.
        """
        self.block, self._narrowest, self._drafter = block, narrowest, drafter
        self._widths = sorted(widths) or list(range(2, block + 1))
        self._drafts, self._matches = (
            AcceptanceRates(block - 1, _PRIOR, shared_rate=True),
            [AcceptanceRates(block - 1, prior, 2.0) for _, prior in _MATCHES],
        )
        self._verifying, self._drafting = Costs(), Costs({PLAIN: 0.0})
        """apart, so that every cycle tells what verifying costs: a plain one is nothing else"""
        self._blocks, self._chosen_rows = Blocks(self._widths), 0
        """where the drafter reports its confidence; and how many rows of the block that was just drafted are verified,
        0: as many as planned"""
        self._best_rate = 0.0
        """tokens per second of the best cycle there is, which a row has to earn; 0 before anything is known"""
        self._prompt_row = 0.0
        """seconds of a row of a prompt, the cheapest that there are: of the fastest piece that was wider than a block;
        0 before any"""
        self._cycles = 0
        self._has_drafted = False
        self._found = AcceptanceRates(1, _PRIOR)
        """of all matches"""
        self._reserved = 0.0
        """seconds that trials may take beyond decoding the same tokens without the drafter"""
        self._undrafted = 0
        """cycles since the last that drafted"""
        self._rival = 0.0
        """seconds a token of the best cycle without the drafter, where one was on trial"""

    @classmethod
    def for_engines(cls, engines: Engines, *, drafter: bool = True) -> Self:
        """One that knows nothing yet of `engines`."""
        return cls(engines.drafter.block, engines.widths, narrowest=engines.target.min_verify_rows, drafter=drafter)

    def begin(self) -> None:
        """Another answer begins: how often the drafter was right in others says little of it, what calls cost and what
        look-ups find stays as it is.
        """
        self._drafts.begin()
        self._blocks.begin()

    def prefilled(self, rows: int, seconds: float) -> None:
        if rows > self.block:
            self._prompt_row = min(self._prompt_row or seconds / rows, seconds / rows)

    def plan(self, most: int, match: int) -> CyclePlan:
        self._chosen_rows = 0
        widths = [width for width in self._widths if width <= most]
        if not widths:
            return CyclePlan(PLAIN, drafted=False)
        if (
            self._drafter and not self._has_drafted
        ):  # one block, the cheapest, and one plain cycle first: nothing is known without them
            return CyclePlan(widths[0], drafted=True)
        if self._narrowest not in self._verifying:
            return CyclePlan(PLAIN, drafted=False)
        looked_up, rate = self._look_up(widths, match)
        if not self._drafter:
            return looked_up
        width, drafted_rate = self._best_draft(widths)
        self._best_rate = max(rate, drafted_rate)
        if drafted_rate > rate:
            return CyclePlan(width, drafted=True)
        # Only to learn of the drafter what has not been seen recently, and not where a look-up promises much: there it
        # would cost most.
        self._rival, trial = 1 / rate, self._undrafted >= _PATIENCE and looked_up.width == PLAIN
        loss = max(self.cost(widths[0]) - self._rival, 0.0)
        self._reserved = min(self._reserved, _SAVED_UP * loss)
        return CyclePlan(widths[0], drafted=True, trial=True) if trial and loss <= self._reserved else looked_up

    def choose_verify_rows(self, plan: CyclePlan, confidence: Confidence) -> int:
        if not self._best_rate:
            return plan.width
        self._chosen_rows = self._blocks.choose_verify_rows(
            plan.width, confidence, [self._best_rate * self._verify(width) for width in self._widths]
        )
        return self._chosen_rows

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        self._cycles += 1
        rows = self._chosen_rows or plan.width
        self._verifying.note(max(rows, self._narrowest), verify_seconds)
        if not plan.drafted:
            self._undrafted += 1
            self._reserved += _BUDGET * self._verify(plan.width)  # what it took beyond that was somebody else's
            return
        self._undrafted, self._has_drafted = 0, True
        self._drafting.note(plan.width, seconds - verify_seconds)
        if self._chosen_rows:
            self._blocks.note(rows, accepted)
        else:
            self._drafts.note(rows - 1, accepted)
        if plan.trial:
            self._reserved += (accepted + 1) * self._rival - self.cost(plan.width)

    def note_lookup(self, match: int, observed: int, accepted: int) -> None:
        if match:
            self._class_of(match).note(observed, accepted)
            self._found.note(1, accepted)

    def tokens(self, width: int) -> float:
        """Expected tokens of a cycle drafted `width` rows wide, one of those there are, of which as many are verified
        as promise enough.
        """
        return self._blocks.tokens(width) if self._blocks else self._drafts.tokens()[width - 1]

    def cost(self, width: int) -> float:
        """Seconds of a cycle drafted `width` rows wide; of `PLAIN`, of one that is not drafted."""
        if width > PLAIN and self._blocks:
            return self._blocks.mean(width, self._verify) + self._drafting.of(width)
        return self._verify(width) + self._drafting.of(width)

    def rate(self, width: int) -> float:
        """Expected tokens per second of a drafted cycle; of `PLAIN`, with nothing to look up."""
        return (self.tokens(width) if width > PLAIN else 1.0) / self.cost(width)

    def verdict(self) -> str:
        """What it thinks of drafting now, in sentences."""
        if self._narrowest not in self._verifying or not self._has_drafted:
            return "too few cycles to tell whether drafting pays"
        best, rate = self._best_draft(self._widths)
        gain, cost = rate / self.rate(PLAIN), self.cost(best) / self.cost(PLAIN)
        verified = f" and verifying {self._blocks.mean(best, float):.1f} of them" if self._blocks else ""
        doing = f"drafting {best} rows{verified}" if gain > 1 else "decoding plainly"
        worth = (
            f"a block of {best} is worth {gain:.2f}x plain decoding ({self.tokens(best):.2f} tokens for {cost:.2f}"
            " times the cost)"
        )
        if not self._found:
            return f"{doing}: {worth}"
        return (
            f"{doing} where the text does not repeat itself: {worth}; where it does, {self._found.by_slot()[0]:.0%} of"
            " what is looked up is right"
        )

    def _look_up(self, widths: Sequence[int], match: int) -> tuple[CyclePlan, float]:
        """The best cycle that does not draft, and its tokens per second."""
        plain = self.cost(PLAIN)
        expected = self._class_of(match).tokens() if match else [1.0] * self.block
        best, rate = PLAIN, expected[min(self._narrowest, self.block) - 1] / plain
        for width in [width for width in widths if width > self._narrowest] if match else ():
            # Rows in one call never cost more than in several: a first call, which sets things up, is not believed
            # beyond that.
            cost = min(self._verify(width), plain * width / self._narrowest)
            if expected[width - 1] / cost > rate:
                best, rate = width, expected[width - 1] / cost
        return CyclePlan(best, drafted=False), rate

    def _best_draft(self, widths: Sequence[int]) -> tuple[int, float]:
        """The best width to draft, and its tokens per second."""
        best, rate = PLAIN, 0.0
        for width in widths:
            if (here := self.rate(width)) > rate:
                best, rate = width, here
        return best, rate

    def _verify(self, width: int) -> float:
        """Seconds of verifying `width` rows."""
        beyond = max(width - max(self._verifying.widest, self._narrowest), 0)
        measured, step = self._verifying.of(max(width, self._narrowest)), self._verifying.of(self._narrowest)
        least, most = _ROW * step, _EXPENSIVE_ROW * step
        row = least if self._cycles >= _CAREFUL else min(max(self._prompt_row, least), most)
        return measured + beyond * row

    def _class_of(self, match: int) -> AcceptanceRates:
        return self._matches[bisect_right(_MATCHES, match, key=lambda entry: entry[0]) - 1]
