"""Engines in plain Python.

The target's choice depends on every token up to a row, as its cache holds them: a stale or misplaced row changes the
answer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from dflash_compile.runtime.engines import DrafterEngine, TargetEngine

VOCAB = 11


def choice(tokens: Sequence[int], vocab: int = VOCAB) -> int:
    """The fake model: the token after `tokens`."""
    return zlib.crc32(bytes(tokens)) % vocab


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens after `prompt`, with no engine at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(choice(tokens))
    return tokens[len(prompt) :]


class FakeTarget(TargetEngine):
    def __init__(self, context: int = 64, min_verify_rows: int = 2, max_rows: int = 16) -> None:
        super().__init__(
            context=context,
            vocab=VOCAB,
            max_rows=max_rows,
            min_verify_rows=min_verify_rows,
            row_multiple=min_verify_rows,
        )
        self.cache = [-1] * context
        self.widths: list[int] = []
        self._last: tuple[int, list[int]] = (0, [])

    def close(self) -> None:
        self.cache = []

    def _write(self, tokens: Sequence[int], position: int) -> list[int]:
        assert self.min_verify_rows <= len(tokens) <= self.max_rows
        assert -1 not in self.cache[:position], "a row before the position was never written"
        self.widths.append(len(tokens))
        self.cache[position : position + len(tokens)] = tokens
        self._last = (position, list(tokens))
        return [choice(self.cache[: position + row + 1]) for row in range(len(tokens))]

    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        return self._write(tokens, position)[rows - 1]

    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]:
        assert len(block) % self.row_multiple == 0, "a row left over runs another kernel"
        start, tokens = self._last
        choices = self._write(block, position)
        if keep:
            assert start + keep == position, "kept taps do not join those of this call"
            self._last = (start, [*tokens[:keep], *block])
        return choices

    def _taps_impl(self) -> Any:
        """Position and tokens of the last call: what a real drafter would see of them."""
        return self._last


class FakeDrafter(DrafterEngine):
    """Knows the target's function; `right(position)` says whether its guess for that position is the target's or
    another token.
    """

    reports_confidence = True

    def __init__(self, right, context: int = 64, block: int = 8, max_rows: int = 16) -> None:
        super().__init__(context=context, block=block, max_rows=max_rows)
        self.right = right
        self.cache = [-1] * context
        self.drafted_after: list[list[int]] = []

    def close(self) -> None:
        self.cache = []

    def _inject_impl(self, memory: Any, rows: int, position: int) -> None:
        start, tokens = memory
        assert start == position, "taps of other rows than those injected"
        self.cache[position : position + rows] = tokens[:rows]

    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]:
        known = [*self.cache[:position], anchor]
        assert -1 not in known, "the draft cache has a hole"
        self.drafted_after.append(known)
        proposals: list[int] = []
        for slot in range(width - 1):
            true = choice([*known, *proposals])
            proposals.append(true if self.right(position + 1 + slot) else (true + 1) % VOCAB)
        # The block's own rows land in the cache too, and must be overwritten before they count.
        self.cache[position : position + width] = [99] * width
        return proposals

    def _confidence_impl(self, slot: int) -> float:
        return slot / 10
