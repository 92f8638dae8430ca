"""Options of a training run, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_compile.runtime.errors import UsageError


@dataclass(frozen=True)
class TrainOptions:
    """What to train and for how long. Defaults suit a 135M target on two CPU cores.

    Raises `UsageError` for values that cannot work.
    """

    layers: int = 3
    block: int = 8
    taps: tuple[int, ...] | None = None
    """0-based target layers; None spreads five from the second to the last but one"""
    mask_id: int | None = None
    """None takes the last added token of the tokenizer that is neither pad, bos nor eos"""
    response_tokens: int = 400_000
    """response tokens to generate; those already in the feature folder count"""
    response_limit: int = 256
    text_tokens: int = 350_000
    """tokens of plain text from the standard library to train on as well; 0 for none"""
    steps: int = 5000
    minutes: float | None = None
    """train for this long instead of `steps`; the schedule follows the clock"""
    sequences: int = 6
    anchors: int = 32
    """anchors per sequence and step; a step trains sequences * anchors * (block - 1) rows"""
    learning_rate: float = 6e-4
    warm_up: float = 0.04
    clip: float = 1.0
    weight_decay: float = 0.01
    loss_vocabulary: int = 8192
    """most frequent response tokens the loss is normalised over; the last `full_share` of the run uses the whole vocabulary"""
    full_share: float = 0.1
    draft_vocabulary: int | None = None
    """tokens the drafter can propose: the most frequent response tokens, and those that end an answer; None for all"""
    soft_share: float = 0.5
    """how much of the loss is against the target's own distribution; the rest is against the token it said"""
    held_out: int = 40
    """one sequence in this many is kept for τ and never trained on"""
    evaluate_every: int = 250
    checkpoint_seconds: float = 300.0
    seed: int = 0

    def __post_init__(self) -> None:
        positive = ("layers", "response_tokens", "response_limit", "steps", "sequences", "anchors", "loss_vocabulary", "held_out", "evaluate_every")
        for name in positive:
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, not {getattr(self, name)}", where=f"training option {name}")
        if not 2 <= self.block <= 64:
            raise UsageError(f"block must be between 2 and 64 rows, not {self.block}", where="training option block")
        if self.held_out < 2:
            raise UsageError("held_out must be at least 2: with 1 nothing is left to train on", where="training option held_out")
        if self.draft_vocabulary is not None and self.draft_vocabulary < 1:
            raise UsageError(f"draft_vocabulary must be at least 1, not {self.draft_vocabulary}", where="training option draft_vocabulary")
        if self.text_tokens < 0:
            raise UsageError(f"text_tokens must not be negative, not {self.text_tokens}", where="training option text_tokens")
        for name in ("minutes", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:  # NaN compares to nothing
                raise UsageError(f"{name} must be above 0 and finite, not {value}", where=f"training option {name}")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed must be between 0 and {(1 << 32) - 1}, not {self.seed}", where="training option seed")
        if not 0 <= self.soft_share <= 1:
            raise UsageError(f"soft_share must be between 0 and 1, not {self.soft_share}", where="training option soft_share")
        for name in ("warm_up", "full_share"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} is a share of the run, between 0 and 1, not {getattr(self, name)}", where=f"training option {name}")


def default_taps(layers: int, count: int = 5) -> tuple[int, ...]:
    """`count` layers spread evenly from layer 1 to the last but one, whose output is still before the final norm."""
    count = min(count, layers - 2) or 1
    if count == 1:
        return (max(layers - 2, 0),)
    return tuple(round(1 + i * (layers - 3) / (count - 1)) for i in range(count))
