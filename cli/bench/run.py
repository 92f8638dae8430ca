"""One answer of one variant: its tokens, and where its time went."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.runtime.statistics import Role, Statistics

ROLES: tuple[Role, ...] = ("inject", "draft", "verify", "decode")
"""roles of decoding, in the order of a cycle"""


@dataclass(frozen=True)
class Run:
    """A finished answer.

    Seconds of `statistics` are of the engines and the loop; the other two are by the wall clock, tokenizer and template
    included.
    """

    tokens: tuple[int, ...]
    text: str
    first_seconds: float
    """from the request to its first token"""
    latency_seconds: float
    """from the request to the end of its text"""
    begun: Statistics
    """as they stood at the first token: the prompt's share"""
    statistics: Statistics

    @property
    def decoded(self) -> int:
        """Tokens that decoding gave: all but the first, which prefill gives."""
        return max(len(self.tokens) - 1, 0)

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return self.statistics.decode_seconds

    def seconds(self, role: Role) -> float:
        """Of decoding spent in `role`; what the prompt took is left out."""
        return max(self.statistics.seconds.get(role, 0.0) - self.begun.seconds.get(role, 0.0), 0.0)

    def prompt_seconds(self, role: Role) -> float:
        """Of taking in the prompt spent in `role`."""
        return self.begun.seconds.get(role, 0.0)

    @property
    def host_seconds(self) -> float:
        """Of decoding spent outside the engines."""
        return max(self.decode_seconds - sum(self.seconds(role) for role in ROLES), 0.0)
