"""The tokens that penalties and bans look back at: the prompt, the answer so far, and how often it has each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .parameters import Sampling

Row = NDArray[np.float32]


class History:
    """Edits logits by what was said. Row i of a block sees the prompt, the answer, and the proposals before it."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], eos_ids: Sequence[int], vocab: int) -> None:
        self._sampling, self._eos_ids = sampling, [token for token in eos_ids if token < vocab]
        self._tokens = list(prompt)
        self._prompt = len(prompt)
        self._said = np.zeros(vocab, np.int32)
        """of the answer"""
        self._seen = np.zeros(vocab, np.bool_)
        """in prompt or answer"""
        self._seen[[token for token in set(prompt) if token < vocab]] = True
        self._biased = np.array(sorted(sampling.logit_bias), np.int64)
        self._biases = np.array([sampling.logit_bias[token] for token in sorted(sampling.logit_bias)], np.float32)

    def append(self, token: int) -> None:
        """The answer has `token` next."""
        self._tokens.append(token)
        self._said[token] += 1
        self._seen[token] = True

    def edit(self, logits: Row) -> Row:
        """`logits` [vocab] with bias, penalties and bans: a copy where there are any."""
        sampling = self._sampling
        if not sampling.edits:
            return logits
        row = logits.copy()
        row[self._biased] += self._biases
        if sampling.repetition_penalty != 1:
            seen = row[self._seen]
            penalty = np.float32(sampling.repetition_penalty)
            row[self._seen] = np.where(seen < 0, seen * penalty, seen / penalty)
        if sampling.presence_penalty:
            row[self._said > 0] -= np.float32(sampling.presence_penalty)
        if sampling.frequency_penalty:
            row -= np.float32(sampling.frequency_penalty) * self._said
        row[self._forbidden()] = -np.inf
        return row

    def _forbidden(self) -> list[int]:
        banned = [] if len(self._tokens) - self._prompt >= self._sampling.min_new_tokens else list(self._eos_ids)
        for word in self._sampling.bad_words_ids:
            before = list(word[:-1])
            if not before or self._tokens[-len(before) :] == before:
                banned.append(word[-1])
        return banned
