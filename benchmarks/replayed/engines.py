"""Engines that answer from a recording, and move a clock by what their calls cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash_compile.runtime.engines import DrafterEngine, TargetEngine

from .answer import Answer, Recording
from .prices import Prices

_NO_TOKEN = -1


class Clock:
    """Seconds, which pass only when someone says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ReplayedTarget(TargetEngine):
    """Knows what the recorded answer says next; what follows a wrong guess it does not, and nobody asks."""

    def __init__(self, recording: Recording, answer: Answer, clock: Clock, host: float) -> None:
        """`host` are seconds that the host takes for each cycle."""
        context = len(answer.prompt) + len(answer.tokens) + recording.block
        super().__init__(
            context=context,
            vocab=1 << 31,
            max_rows=recording.widest,
            min_verify_rows=recording.exact_width,
            row_multiple=recording.multiple,
        )
        self._prices, self._clock, self._host = recording.prices, clock, host
        self._first, self._truth = len(answer.prompt) - 1, answer.tokens

    def close(self) -> None:
        pass

    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        self._clock.now += rows * self._prices.read
        return self._truth[0]

    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]:
        self._clock.now += self._prices.verify[len(block)] + self._host
        start = position - self._first
        known = self._truth[start : start + len(block)]
        return [*known, *[_NO_TOKEN] * (len(block) - len(known))]

    def _taps_impl(self) -> Any:
        return None


class ReplayedDrafter(DrafterEngine):
    """Proposes what it proposed at that place, at that width."""

    def __init__(self, recording: Recording, answer: Answer, clock: Clock, chances: bool) -> None:
        """Without `chances` it does not say how sure it is."""
        super().__init__(
            context=len(answer.prompt) + len(answer.tokens) + recording.block,
            block=recording.block,
            max_rows=recording.widest,
        )
        self._prices: Prices = recording.prices
        self._clock, self._first, self._proposals = clock, len(answer.prompt), answer.proposals
        self.reports_confidence = chances and bool(answer.chances)
        self._chances, self._said = answer.chances, list[float]()

    def _confidence_impl(self, slot: int) -> float:
        return self._said[slot]

    def close(self) -> None:
        pass

    def _inject_impl(self, memory: Any, rows: int, position: int) -> None:
        if position >= self._first:  # the prompt's are prefill's, which costs the same whoever decodes
            self._clock.now += self._prices.injected(rows)

    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]:
        self._clock.now += self._prices.draft[width]
        if self.reports_confidence:
            self._said = self._chances[position - self._first][width - 2]
        return self._proposals[position - self._first][width - 2]
