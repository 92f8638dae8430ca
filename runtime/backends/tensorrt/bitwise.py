"""Which widths of verify round as the widest does on this GPU. Only those may take turns: the text must not depend on
how wide a cycle happens to be.

Each width is a program of its own, and nothing promises that two programs add up in the same order. So each is tried
against the widest on the same tokens at several places of the cache: choices, taps, and the last layer's K and V, which
everything before it went into, must be equal bit for bit. What is not seen is the head's own rounding, but for the
choices that come of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pair import Pair

_TRIALS = 4


def equal_widths(pair: Pair) -> list[int]:
    """Widths of verify that give one another's bits, narrowest first, the widest among them. Overwrites the caches."""
    return [rows for rows in pair.widths if rows == pair.block or _bitwise_equal(pair, rows)]


def _bitwise_equal(pair: Pair, rows: int) -> bool:
    """Whether verify of `rows` rows gives the first rows of what the widest gives."""
    generator = np.random.default_rng(rows)
    for trial in range(_TRIALS):
        position = trial * (pair.rows - pair.block) // (_TRIALS - 1)
        tokens, others = (generator.integers(pair.manifest.target.vocab, size=pair.block).tolist() for _ in range(2))
        expected = _outcome(pair, tokens, position, pair.block, rows)
        _outcome(pair, others, position, pair.block, rows)  # nothing of the answer may be left where it is read
        found = _outcome(pair, tokens, position, rows, rows)
        if not all(np.array_equal(*arrays) for arrays in zip(expected, found, strict=True)):
            return False
    return True


def _outcome(pair: Pair, tokens: list[int], position: int, rows: int, seen: int) -> list[NDArray[Any]]:
    """The first `seen` rows of everything that a verify of `rows` rows of `tokens` writes, as bits."""
    pair.write("block", tokens)
    pair.write("position", [position])
    pair.run("verify", rows)
    widest = ("verify", pair.block)
    record = pair.record(widest)
    taps = pair.bits("taps", pair.bytes(widest, "taps")).reshape(pair.block, -1)[:seen]
    kept = [np.array(pair.read("tokens", seen)), taps.copy()]
    for name, _ in record.caches[-2:]:
        heads = next(port.shape[1] for port in record.inputs if port.name == name)
        cache = pair.bits(f"target/{name}", pair.bytes(widest, name)).reshape(int(heads), pair.rows, -1)
        kept.append(cache[:, position : position + seen].copy())
    return kept
