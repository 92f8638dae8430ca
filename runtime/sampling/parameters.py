"""What a sampled answer is asked for, with the names and meanings of transformers' `GenerationConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from numbers import Integral, Real
from typing import Any

from ..errors import UsageError

MOST_SEED = (1 << 64) - 1
COLDEST, HOTTEST = 1e-6, 1e6
"""temperatures: outside, float32 no longer tells logits apart, or from infinity"""
LARGEST_FLOAT = 3e38


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen from logits. The default is greedy: the token of the largest logit.

    Every parameter is applied to every row, in transformers' order: logit bias, penalties, bad words, fewest tokens,
    temperature, top-k, top-p, min-p. Raises `UsageError` for values that mean nothing.
    """

    temperature: float = 0.0
    """logits are divided by it; 0 takes the largest, and `top_k`, `top_p`, `min_p` and `seed` mean nothing then"""
    top_k: int = 0
    """only the tokens whose logits are as large as the k-th largest; 0: all"""
    top_p: float = 1.0
    """only the fewest most probable tokens whose chances sum up to it"""
    min_p: float = 0.0
    """only tokens at least this share as probable as the most probable one"""
    seed: int | None = None
    """0 to 2^64 - 1; None draws one anew for each request, which its statistics tell"""
    repetition_penalty: float = 1.0
    """logits of tokens of prompt and answer are divided by it where positive, else multiplied (arXiv 1909.05858)"""
    presence_penalty: float = 0.0
    """taken off the logits of tokens that the answer has"""
    frequency_penalty: float = 0.0
    """taken off the logits of tokens that the answer has, as often as it has them"""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """by token id, added to its logit; minus infinity forbids the token"""
    bad_words_ids: Sequence[Sequence[int]] = ()
    """sequences of token ids that may not occur: the last token of one is forbidden where the others stand before it"""
    min_new_tokens: int = 0
    """the answer does not end with an end-of-sequence token before it has as many"""

    def __post_init__(self) -> None:
        warm = self.temperature == 0 or (_number(self.temperature) and COLDEST <= self.temperature <= HOTTEST)
        _check(
            warm and _number(self.temperature),
            "temperature",
            self.temperature,
            f"0, or {COLDEST} to {HOTTEST:.0f}",
        )
        _check(_count(self.top_k), "top_k", self.top_k, "a whole number, or 0 for all tokens")
        _check(_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "more than 0, and at most 1")
        _check(_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "0 to 1")
        seeded = self.seed is None or (_count(self.seed) and self.seed <= MOST_SEED)
        _check(seeded, "seed", self.seed, "a whole number from 0 to 2^64 - 1")
        penalty = self.repetition_penalty
        _check(_number(penalty) and penalty > 0, "repetition_penalty", penalty, "more than 0; 1 changes nothing")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(_number(value), name, value, "a finite number")
        _check(_count(self.min_new_tokens), "min_new_tokens", self.min_new_tokens, "a whole number")
        _check(_biases(self.logit_bias), "logit_bias", self.logit_bias, "token ids and what to add to their logits")
        words = "a list of sequences of token ids, none of them empty"
        _check(_words(self.bad_words_ids), "bad_words_ids", self.bad_words_ids, words)

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn by chance."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """Whether the largest logit is the choice as it stands, so that an engine may choose by itself."""
        return self.greedy and not self.edits

    @property
    def edits(self) -> bool:
        """Whether logits are changed before temperature."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.logit_bias
            or self.bad_words_ids
            or self.min_new_tokens
        )

    def check_vocab(self, vocab: int) -> None:
        """Raises `UsageError` for token ids that are none of a target's `vocab`."""
        named = [*self.logit_bias, *(token for word in self.bad_words_ids for token in word)]
        if outside := sorted({token for token in named if token >= vocab}):
            raise UsageError(
                f"token {outside[0]} in logit_bias or bad_words_ids",
                where="sampling",
                why=f"the target has tokens 0 to {vocab - 1}",
                fix="leave it out",
            )

    def changed(self) -> dict[str, Any]:
        """The parameters that are not the default's, by name."""
        return {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) != getattr(GREEDY, one.name)
        }


def _check(right: bool, name: str, value: object, wanted: str) -> None:
    if not right:
        raise UsageError(f"{name}={value!r}", where="sampling", fix=f"give {wanted}")


def _number(value: object) -> bool:
    """A finite one, of Python or of numpy, that float32 can hold."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return abs(float(value)) <= LARGEST_FLOAT
    except OverflowError:  # an integer beyond every float
        return False


def _count(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def _biases(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    return all(_count(token) and (_number(bias) or bias == -inf) for token, bias in value.items())


def _words(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    sequences = all(isinstance(word, Sequence) and not isinstance(word, str | bytes) and word for word in value)
    return sequences and all(_count(token) for word in value for token in word)


GREEDY = Sampling()
