"""Options of a training run, validated once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dflash_compile.runtime.errors import UsageError

PRECISIONS = ("auto", "bfloat16", "float32")
COUNTS = (
    "layers",
    "response_limit",
    "steps",
    "sequences",
    "anchors",
    "loss_vocabulary",
    "draft_vocabulary",
    "evaluate_every",
)
BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(COUNTS, (1, math.inf)),
    "block": (2, 64),
    "held_out": (2, math.inf),  # with 1 nothing is left to train on
    **dict.fromkeys(("response_tokens", "text_tokens"), (0, math.inf)),
    "weight_decay": (0, math.inf),
    "checkpoint_seconds": (0, math.inf),
    "seed": (0, (1 << 32) - 1),
    "soft_share": (0, 1),
    "narrow_share": (0, 1),
}
"""least and greatest value of options"""


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
    """response tokens to generate; those already in the feature folder count. 0 where other folders have all that is
    wanted"""
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
    """most frequent response tokens the loss is normalised over; the last `full_share` of the run uses the whole
    vocabulary"""
    draft_vocabulary: int | None = None
    """tokens the drafter can propose: the most frequent response tokens, and those that end an answer; None for those
    of the drafter begun with, else all"""
    sample_from_anchor: bool = False
    """the anchor's row proposes the first token, so that a block of B rows is drafted in B - 1; else rows of masks
    propose"""
    full_share: float = 0.1
    gamma: float | None = None
    """decay of the loss along a block: row k weighs exp(-(k - 1) / gamma); None for the published decay of the block,
    `blocks.gamma_for`"""
    narrow_share: float = 0.0
    """how many blocks are trained at widths below `block`, each as often as the others: for runtimes that draft
    narrower than that"""
    soft_share: float = 0.5
    """how much of the loss is against the target's own distribution; the rest is against the token it said"""
    held_out: int = 40
    """one sequence in this many is kept for τ and never trained on"""
    evaluate_every: int = 250
    checkpoint_seconds: float = 300.0
    seed: int = 0

    precision: str = "auto"
    """of the products: "bfloat16", "float32", or "auto", which takes bfloat16 where the device has it in hardware"""

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:  # NaN compares to nothing
                allowed = f"at least {least}" if most == math.inf else f"between {least} and {most}"
                raise _wrong(name, f"must be {allowed}, not {value}", f"give a number {allowed}")
        for name in ("minutes", "learning_rate", "clip", "gamma"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise _wrong(name, f"must be above 0 and finite, not {value}", "give a finite number above 0")
        for name in ("warm_up", "full_share"):
            if not 0 <= getattr(self, name) < 1:
                raise _wrong(
                    name,
                    f"is a share of the run, between 0 and 1, not {getattr(self, name)}",
                    "give a number from 0 to just under 1",
                )
        if self.precision not in PRECISIONS:
            raise _wrong("precision", f"cannot be {self.precision!r}", f"give one of: {', '.join(PRECISIONS)}")


def _wrong(name: str, what: str, fix: str) -> UsageError:
    return UsageError(f"{name} {what}", where=f"training option {name}", fix=fix)


def default_taps(layers: int, count: int = 5) -> tuple[int, ...]:
    """`count` layers spread evenly from layer 1 to the last but one, whose output is still before the final norm."""
    count = min(count, layers - 2) or 1
    if count == 1:
        return (max(layers - 2, 0),)
    return tuple(round(1 + i * (layers - 3) / (count - 1)) for i in range(count))
