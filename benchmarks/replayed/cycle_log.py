"""What each kind of cycle gained or lost against plain decoding of the same tokens."""

from __future__ import annotations

from collections import Counter, defaultdict

from dflash_compile.runtime.policy.controller import Controller, CyclePlan
from dflash_compile.runtime.policy.verify_rows import Confidence


class CycleLog:
    """A controller that does what another one decides, and books what came of it by kind of cycle; of drafts, by the
    width they were drafted at.
    """

    def __init__(self, inner: Controller, plain: float) -> None:
        """`plain` are seconds a token of plain decoding."""
        self._inner, self._plain = inner, plain
        self.cycles: Counter[str] = Counter()
        self.saved: defaultdict[str, float] = defaultdict(float)
        """seconds, below zero where they were lost"""

    def begin(self) -> None:
        self._inner.begin()

    def prefilled(self, rows: int, seconds: float) -> None:
        self._inner.prefilled(rows, seconds)

    def plan(self, most: int, match: int) -> CyclePlan:
        return self._inner.plan(most, match)

    def choose_verify_rows(self, plan: CyclePlan, confidence: Confidence) -> int:
        return self._inner.choose_verify_rows(plan, confidence)

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        self._inner.observe(plan, accepted, seconds, verify_seconds)
        kind = (
            "trial"
            if plan.trial
            else f"draft {plan.width}"
            if plan.drafted
            else "plain"
            if plan.width < 2
            else f"look-up {plan.width}"
        )
        self.cycles[kind] += 1
        self.saved[kind] += (accepted + 1) * self._plain - seconds

    def note_lookup(self, match: int, observed: int, accepted: int) -> None:
        self._inner.note_lookup(match, observed, accepted)
