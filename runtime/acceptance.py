"""Which proposals of a block are accepted, and the token that follows them.

A proposal is accepted where it is what the target chose itself: the largest logit here, or what `sampling/` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The outcome of one verified block."""

    accepted: int
    """leading proposals that are accepted"""
    bonus: int
    """the target's own token after them: the next anchor"""


def accept_greedy(proposals: Sequence[int], choices: Sequence[int]) -> Acceptance:
    """Accept leading proposals equal to the target's choices.

    `choices[i]` is the target's token after row i of the block [anchor, *proposals], so it answers `proposals[i]`;
    there is one more of them.
    """
    accepted = agreement(proposals, choices)
    return Acceptance(accepted, choices[accepted])


def agreement(guesses: Sequence[int], truth: Sequence[int]) -> int:
    """How many leading guesses are right, as far as the truth is known."""
    right = 0
    for guess, token in zip(guesses, truth, strict=False):
        if guess != token:
            break
        right += 1
    return right
