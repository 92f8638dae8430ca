"""What one request did and how long it took: counted by a recorder while it runs, read as a frozen snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

Finish = Literal["eos", "stop", "length", "max_new_tokens"]
Role = Literal["prefill", "inject", "draft", "verify", "decode"]


@dataclass(frozen=True)
class Statistics:
    """One request. Seconds count the engine calls and the loop around them, never the time the caller kept a token."""

    prompt_tokens: int
    tokens: int
    """handed out, the end-of-sequence token included"""
    cycles: int
    """calls that verified a block, drafted or looked up, or decoded plainly"""
    offered_at: tuple[int, ...]
    """cycles that verified a drafted proposal at slot i of the block, i = 0 right after the anchor; what was looked up
    does not count here"""
    accepted_at: tuple[int, ...]
    """cycles in which the proposal at slot i was accepted"""
    prefill_seconds: float
    """from the start of the request to its first token"""
    decode_seconds: float
    seconds: Mapping[Role, float]
    """inside engine calls, by role; `inject` includes the prompt's"""
    finish: Finish | None
    """None while the request runs, or where its caller left early"""
    undrafted_tokens: int = 0
    """handed out by cycles that did not draft"""
    looked_up: int = 0
    """guesses that were looked up in the text and verified"""
    looked_up_accepted: int = 0
    """those that were accepted"""
    seed: int | None = None
    """of the noise that tokens were drawn with; None where none was"""

    @property
    def drafted(self) -> int:
        """Cycles that drafted; the others verified what was looked up, or decoded one token plainly."""
        return self.offered_at[0] if self.offered_at else 0

    @property
    def tau(self) -> float:
        """Tokens per drafted cycle: accepted proposals and the bonus, cut where the answer ends. 0 where none drafted.

        Of what was verified: proposals that the drafter was not sure of may have been left out. A fixed block verifies
        all.
        """
        return max(self.tokens - 1 - self.undrafted_tokens, 0) / self.drafted if self.drafted else 0.0

    @property
    def undrafted_tau(self) -> float:
        """The same of cycles that did not draft: 1 where nothing looked up was right, 0 where every cycle drafted."""
        return self.undrafted_tokens / (self.cycles - self.drafted) if self.cycles > self.drafted else 0.0

    @property
    def accepted(self) -> int:
        """Proposals of the drafter accepted, over all cycles."""
        return sum(self.accepted_at)

    @property
    def tokens_per_second(self) -> float:
        """Speed of decoding alone: the first token belongs to prefill."""
        return (self.tokens - 1) / self.decode_seconds if self.tokens > 1 and self.decode_seconds > 0 else 0.0

    @property
    def host_seconds(self) -> float:
        """Time outside engine calls: the loop's own, in which the drafter says how sure it is."""
        return max(self.prefill_seconds + self.decode_seconds - sum(self.seconds.values()), 0.0)


class Recorder:
    """Counts one request. Belongs to the loop; others read `snapshot`."""

    def __init__(self, block: int, clock: Callable[[], float] = perf_counter) -> None:
        """`block` is the most rows of a block; `clock` gives seconds from any start, and is the only one that the loop
        reads.
        """
        self.clock = clock
        self.prompt_tokens = self.tokens = self.cycles = 0
        self._drafted = True
        self._undrafted_tokens = self._looked_up = self._looked_up_accepted = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        self.finish: Finish | None = None
        self.seed: int | None = None
        self._offered, self._accepted = [0] * block, [0] * block
        self._seconds: dict[Role, float] = {}

    def spent(self, role: Role, since: float) -> float:
        """Book the time from `since` until now on `role`, and return now, in seconds of `clock`."""
        now = self.clock()
        self._seconds[role] = self._seconds.get(role, 0.0) + now - since
        return now

    def token(self) -> None:
        """A token was handed out, of the cycle counted last; the first is prefill's."""
        self.tokens += 1
        if not self._drafted:
            self._undrafted_tokens += 1

    def cycle(self, drafted: bool, offered: int, accepted: int) -> None:
        """One block of `offered` guesses was verified and its first `accepted` were right."""
        self.cycles += 1
        self._drafted = drafted
        if not drafted:
            self._looked_up += offered
            self._looked_up_accepted += accepted
            return
        # By how many were offered and accepted, so that a cycle costs two increments; `snapshot` sums them up.
        self._offered[offered] += 1
        self._accepted[accepted] += 1

    def snapshot(self) -> Statistics:
        """The request so far."""
        return Statistics(
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            cycles=self.cycles,
            offered_at=_at_least(self._offered),
            accepted_at=_at_least(self._accepted),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            seconds=dict(self._seconds),
            finish=self.finish,
            undrafted_tokens=self._undrafted_tokens,
            looked_up=self._looked_up,
            looked_up_accepted=self._looked_up_accepted,
            seed=self.seed,
        )


def _at_least(histogram: list[int]) -> tuple[int, ...]:
    """For each slot i, how many cycles reached beyond it: those with a count of i + 1 or more."""
    return tuple(sum(histogram[slot + 1 :]) for slot in range(len(histogram) - 1))
