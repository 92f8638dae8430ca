"""Given rows: what is refused, and how calls cut them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes import FakeTarget
from hypothesis import given
from hypothesis import strategies as st

from dflash_compile.runtime.embeds import check_embeds, within
from dflash_compile.runtime.errors import DFlashError, IncompatibleError, UsageError

HIDDEN, PROMPT = 3, 10
ROWS = np.arange(2 * HIDDEN, dtype=np.float32).reshape(2, HIDDEN)


def one(start: Any, rows: Any) -> list[tuple[Any, Any]]:
    return [(start, rows)]


@pytest.mark.parametrize(
    ("embeds", "says"),
    [
        (5, "pairs"),
        ([ROWS], "start at array"),
        ([(0, ROWS, 1)], "pairs"),
        (one("0", ROWS), "start at '0'"),
        (one(True, ROWS), "start at True"),
        (one(0, ROWS.astype(np.float64)), "float64"),
        (one(0, ROWS.astype(np.float16)), "float16"),
        (one(0, [[1, 2, 3]]), "int64"),
        (one(0, ROWS[None]), r"\[1, 2, 3\]"),
        (one(0, ROWS[:, :2]), r"\[2, 2\]"),
        (one(0, ROWS[:0]), r"\[0, 3\]"),
        (one(0, ROWS * np.nan), "not finite"),
        (one(-1, ROWS), "positions -1 to 0"),
        (one(9, ROWS), "positions 9 to 10"),
        ([(4, ROWS), (3, ROWS)], "overlap at position 4"),
        ([(4, ROWS), (4, ROWS)], "overlap at position 4"),
    ],
)
def test_faults_are_named(embeds: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        check_embeds(embeds, PROMPT, HIDDEN)
    assert caught.value.fix


def test_spans_are_sorted_copies() -> None:
    mine = ROWS.copy()
    spans = check_embeds(iter([(np.int64(8), mine), (6, mine.T.copy().T)]), PROMPT, HIDDEN)
    mine[:] = 0
    assert [(span.start, span.end) for span in spans] == [(6, 8), (8, 10)]
    assert all((span.rows == ROWS).all() for span in spans)


def test_a_target_that_takes_none_says_so() -> None:
    assert check_embeds((), PROMPT, None) == ()
    with pytest.raises(IncompatibleError, match="takes no inputs_embeds"):
        check_embeds([(0, ROWS)], PROMPT, None)
    with pytest.raises(DFlashError, match="in place of embedded tokens"):
        FakeTarget().prefill([1, 2, 3], 0, check_embeds([(0, ROWS)], PROMPT, HIDDEN))


@given(
    places=st.lists(st.booleans(), min_size=1, max_size=40), sizes=st.lists(st.integers(1, 9), min_size=40, max_size=40)
)
def test_calls_of_any_size_get_each_row_once_where_it_belongs(places: list[bool], sizes: list[int]) -> None:
    starts = [place for place, taken in enumerate(places) if taken and not (place and places[place - 1])]
    lengths = [
        next((n for n, taken in enumerate(places[start:]) if not taken), len(places) - start) for start in starts
    ]
    whole = np.arange(len(places) * HIDDEN, dtype=np.float32).reshape(-1, HIDDEN)
    spans = check_embeds(
        [(start, whole[start : start + n]) for start, n in zip(starts, lengths, strict=True)], len(places), HIDDEN
    )
    position, found = 0, {}
    for size in sizes:
        for span in within(spans, position, size):
            assert 0 <= span.start < span.end <= size
            found |= {position + span.start + row: values.tolist() for row, values in enumerate(span.rows)}
        position += size
    assert found == {place: whole[place].tolist() for place, taken in enumerate(places) if taken}
