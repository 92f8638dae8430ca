"""Counts and times of decoding with and without the drafter, and the rates that follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Totals:
    """One answer or several.

    The first token of an answer comes from prefill, so it counts in `tokens` but not in `decoded`.
    """

    tokens: int = 0
    decoded: int = 0
    cycles: int = 0
    """of whole blocks"""
    seconds: float = 0.0
    """of decoding with the drafter as the session sees fit"""
    baseline_seconds: float = 0.0
    """of decoding the same tokens without it"""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.tokens + other.tokens,
            self.decoded + other.decoded,
            self.cycles + other.cycles,
            self.seconds + other.seconds,
            self.baseline_seconds + other.baseline_seconds,
        )

    @property
    def tau(self) -> float:
        """Tokens per cycle, drafting whole blocks."""
        return ratio(self.decoded, self.cycles)

    @property
    def tokens_per_second(self) -> float:
        """With the drafter."""
        return ratio(self.decoded, self.seconds)

    @property
    def baseline_tokens_per_second(self) -> float:
        """Without it."""
        return ratio(self.decoded, self.baseline_seconds)

    @property
    def speedup(self) -> float:
        """How many times faster than plain decoding; below 1 the drafter costs more than it saves."""
        return ratio(self.baseline_seconds, self.seconds)

    def as_dict(self) -> dict[str, float | int]:
        """The figures the demo's document promises."""
        return {
            "tau": self.tau,
            "tokens_per_second": self.tokens_per_second,
            "baseline_tokens_per_second": self.baseline_tokens_per_second,
            "speedup": self.speedup,
            "tokens": self.tokens,
        }


def ratio(value: float, by: float) -> float:
    """`value / by`; 0 where there is nothing to divide by."""
    return value / by if by > 0 else 0.0
