"""The noise that draws a token: a function of seed, position and token, and of nothing else.

The generator is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), counter-based,
so any number of its sequence is computed by itself, on any device, in any order. For token t at absolute position p of
prompt and answer, under the seed s: key (s mod 2^32, s div 2^32), counter (t div 4, p, 0, 0); word t mod 4 of the four
is x, the uniform number u = (x + 1/2) / 2^32, and the Gumbel noise -ln(-ln u), in float64.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_TILE = 1 << 13
"""counters at once: their words stay in a core's cache"""
_LOW, _HALF = np.uint64(_WORD), np.uint64(32)

LARGEST = -log(-log(1 - 2.0**-33))
"""no noise exceeds it"""

Ids = NDArray[np.int64]
Noise = NDArray[np.float64]
Words = NDArray[np.uint64]


def gumbel(seed: int, position: int, tokens: Ids) -> Noise:
    """The noise of each of `tokens` [n] at `position`: float64 [n]. The larger of logit + noise is a draw by chance of
    its softmax (the Gumbel-max trick).
    """
    return noise_of(words_of(seed, position, tokens))


def words_of(seed: int, position: int, tokens: Ids) -> Words:
    """The 32-bit numbers behind the noise of `tokens` [n], in ascending order, at `position`: [n]."""
    first = int(tokens[0]) >> 2
    counters = np.arange(first, (int(tokens[-1]) >> 2) + 1, dtype=np.uint64)
    if len(counters) > len(tokens):  # far apart
        return np.choose(tokens & 3, _blocks(seed, position, tokens.astype(np.uint64) >> np.uint64(2)))
    parts = [counters[start : start + _TILE] for start in range(0, len(counters), _TILE)]
    words = np.concatenate([np.stack(_blocks(seed, position, part), 1).ravel() for part in parts])
    return words[tokens - (first << 2)]


def noise_of(words: Words) -> Noise:
    """-ln(-ln u) of the uniform number u that each word stands for."""
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    noise: Noise = -np.log(-np.log(uniform))
    return noise


def _blocks(seed: int, position: int, counters: Words) -> tuple[Words, Words, Words, Words]:
    place, zero = np.full(1, position & _WORD, np.uint64), np.zeros(1, np.uint64)
    return philox((seed & _WORD, seed >> 32), (counters, place, zero, zero))


def philox(key: tuple[int, int], counter: tuple[Words, Words, Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Philox-4x32-10 of `counter`, four arrays of 32-bit words that broadcast to one shape: its four output words."""
    first, second, third, fourth = counter
    key0, key1 = key
    for _ in range(ROUNDS):
        product0, product1 = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first = (product1 >> _HALF) ^ second ^ np.uint64(key0)
        third = (product0 >> _HALF) ^ fourth ^ np.uint64(key1)
        second, fourth = product1 & _LOW, product0 & _LOW
        key0, key1 = (key0 + _WEYL[0]) & _WORD, (key1 + _WEYL[1]) & _WORD
    return first, second, third, fourth
