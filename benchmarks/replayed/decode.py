"""One recorded answer, decoded again in one of the session's ways."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.loop import Limits, run
from dflash_compile.runtime.policy.controller import AdaptiveWidth, Controller
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.statistics import Recorder

from .answer import Answer, Recording
from .cycle_log import CycleLog
from .engines import Clock, ReplayedDrafter, ReplayedTarget


@dataclass(frozen=True)
class Way:
    """How to decode."""

    drafter: bool = False
    lookup: bool = False
    chances: bool = True
    """whether the drafter says how sure it is"""

    def controller(self, recording: Recording) -> AdaptiveWidth:
        """One that knows nothing yet, as a session that was just opened has it."""
        return AdaptiveWidth.for_engines(self.engines(recording, recording.answers[0], Clock()), drafter=self.drafter)

    def engines(self, recording: Recording, answer: Answer, clock: Clock) -> Engines:
        """Those that give `answer` again."""
        host = recording.prices.hosted(self.drafter, self.lookup, self.chances)
        return Engines(
            ReplayedTarget(recording, answer, clock, host), ReplayedDrafter(recording, answer, clock, self.chances)
        )


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
    cycle_log, record = CycleLog(controller, plain), Recorder(recording.block, clock)
    request = Request(answer.prompt, answer.length, draft=way.drafter, lookup=way.lookup)
    cycle_log.begin()
    limits = Limits(answer.length, "max_new_tokens", frozenset())
    tokens = list(run(way.engines(recording, answer, clock), request, limits, cycle_log, record))
    if tokens != answer.tokens[: answer.length]:
        raise ValueError("the replay gave other tokens than were recorded")
    return Replay(record.decode_seconds, dict(cycle_log.cycles), dict(cycle_log.saved))
