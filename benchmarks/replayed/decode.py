"""One recorded answer, decoded again in one of the session's ways."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.loop import Limits, run
from dflash_compile.runtime.policy.controller import AdaptiveWidth, Controller
from dflash_compile.runtime.policy.prompt_lookup import Lookup
from dflash_compile.runtime.statistics import Recorder

from .answer import Answer, Recording
from .engines import Clock, ReplayedDrafter, ReplayedTarget
from .ledger import Ledger


@dataclass(frozen=True)
class Way:
    """How to decode."""

    drafter: bool = False
    lookup: bool = False
    chances: bool = True
    """whether the drafter says how sure it is"""

    def controller(self, recording: Recording) -> AdaptiveWidth:
        """One that knows nothing yet, as a session that was just opened has it."""
        answer, clock = recording.answers[0], Clock()
        engines = Engines(
            ReplayedTarget(recording, answer, clock, 0.0), ReplayedDrafter(recording, answer, clock, self.chances)
        )
        return AdaptiveWidth(recording.block, engines.widths, narrowest=recording.exact_width, drafter=self.drafter)


PLAIN = Way()


@dataclass(frozen=True)
class Replay:
    """What came of it."""

    seconds: float
    """of decoding"""
    cycles: dict[str, int]
    """by kind"""
    saved: dict[str, float]
    """seconds against plain decoding by kind of cycle, below zero where they were lost; what the host takes is in
    none"""


def decode(recording: Recording, answer: Answer, way: Way, controller: Controller) -> Replay:
    """The answer again. Raises `ValueError` where other tokens came of it, which is a fault of this replay."""
    clock, plain = Clock(), recording.prices.verify[recording.exact_width]
    target = ReplayedTarget(recording, answer, clock, recording.prices.hosted(way.drafter, way.lookup, way.chances))
    drafter = ReplayedDrafter(recording, answer, clock, way.chances) if way.drafter else None
    ledger, record = Ledger(controller, plain), Recorder(recording.block, clock)
    lookup, limits = (
        Lookup(recording.block - 1) if way.lookup else None,
        Limits(answer.length, "max_new_tokens", frozenset()),
    )
    ledger.begin()
    tokens = list(run(target, drafter, answer.prompt, limits, ledger, record, None, lookup))
    if tokens != answer.tokens[: answer.length]:
        raise ValueError("the replay gave other tokens than were recorded")
    return Replay(record.decode_seconds, dict(ledger.cycles), dict(ledger.saved))
