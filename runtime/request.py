"""What is asked of a session, in token ids: one object on its way through the loop to its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .embeds import Span
from .errors import UsageError
from .sampling.parameters import GREEDY, Sampling


@dataclass(frozen=True)
class Request:
    """One answer to give. Raises `UsageError` for what no bundle can answer."""

    prompt_ids: Sequence[int]
    """at least one"""
    max_new_tokens: int | None = None
    """None: as many as the context holds"""
    draft: bool = True
    """False: plain decoding, with the same result"""
    block: int | None = None
    """rows of every block, which the drafter fills; None leaves its width to the controller"""
    lookup: bool | None = None
    """whether guesses are looked up in the text where the drafter gives none; None: where that is known to pay"""
    embeds: Sequence[Span] = ()
    """in place of embedded tokens of the prompt, in order"""
    sampling: Sampling = GREEDY
    """how tokens are chosen"""

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, Sampling):
            raise UsageError(
                f"sampling={self.sampling!r}",
                fix="give a `Sampling`, as in `from dflash_compile.runtime import Sampling`",
            )
        if not self.prompt_ids:
            raise UsageError(
                "the prompt is empty", why="a model continues text: it needs at least one token", fix="give a prompt"
            )
        most, block = self.max_new_tokens, self.block
        if most is not None and (type(most) is not int or most < 1):
            raise UsageError(f"max_new_tokens={most!r}", fix="ask for a whole number of tokens, at least one")
        if block is not None and (type(block) is not int or block < 2):
            raise UsageError(
                f"block={block!r}",
                why="a block is the last token and at least one proposal",
                fix="give a whole number of rows, at least 2, or leave it out",
            )
        if block is not None and self.lookup:
            raise UsageError(
                "lookup=True with a fixed block",
                why="the drafter fills every block then",
                fix="leave out one of the two",
            )

    def looks_up(self, device_cycles: bool) -> bool:
        """Whether guesses are looked up, where whole cycles are the device's own or not."""
        # Between cycles that a device does alone a look-up would make it wait: nobody has measured yet whether that
        # pays.
        return self.draft and self.block is None and not device_cycles if self.lookup is None else self.lookup
