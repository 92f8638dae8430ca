"""Targets whose rows are computed two by two: every block is padded to whole pairs, and nothing else changes."""

from __future__ import annotations

import pytest
from fakes import FakeTarget, continuation
from hypothesis import given
from hypothesis import strategies as st

from dflash_compile.runtime.controller import FixedWidth
from dflash_compile.runtime.engines import DrafterEngine, Taps
from dflash_compile.runtime.errors import LengthError
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.statistics import Recorder


class Oracle(DrafterEngine):
    """Proposes what the target will say, wrong from row `right` on."""

    def __init__(self, context: int, block: int, prompt: list[int], right: int) -> None:
        super().__init__(context=context, block=block, widest=16)
        self.tokens = [*prompt, *continuation(prompt, context)]
        self.right = right

    def close(self) -> None:
        pass

    def _inject_impl(self, memory: Taps, rows: int, position: int) -> None:
        pass

    def _draft_impl(self, anchor: int, position: int, width: int) -> list[int]:
        assert anchor == self.tokens[position]
        ahead = self.tokens[position + 1 : position + width]
        return [token if row < self.right else (token + 1) % 11 for row, token in enumerate(ahead)]


@given(length=st.integers(1, 20), context=st.integers(24, 41), block=st.integers(2, 7), right=st.integers(0, 7))
def test_blocks_are_whole_pairs_to_the_end_of_the_context(length: int, context: int, block: int, right: int) -> None:
    prompt = [number % 11 for number in range(length)]
    target = FakeTarget(context, 2, 16, multiple=2)
    limits = plan_limits(length, target, None, ())
    found = list(run(target, Oracle(context, block, prompt, right), prompt, limits, FixedWidth(block), Recorder(block)))
    assert found == continuation(prompt, len(found))
    assert len(found) == max(context - length, 1)
    assert all(rows % 2 == 0 for rows in target.blocks)


def test_padding_that_does_not_fit_is_refused() -> None:
    target = FakeTarget(7, 2, 16, multiple=2)
    target.prefill([1, 2, 3, 4], 0)
    with pytest.raises(LengthError):
        target.verify([5, 6, 7], 4)
    assert target.fitting(3) == 2
    assert not target.room(13, 3)
