"""Vocabulary maps against cases worked out by hand, and a head made of the target's rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_compile.export.checkpoints import draft_head
from dflash_compile.export.checkpoints.draft_head import SelectedRows
from dflash_compile.export.dflash.vocabulary import DraftVocabulary, vocabulary_of
from dflash_compile.runtime.errors import CheckpointError

VOCAB = 8
IDS = (1, 2, 5, 7)
DELTAS = torch.tensor([1, 1, 3, 4])
MEMBERS = torch.tensor([False, True, True, False, False, True, False, True])


def test_a_map_worked_out_by_hand() -> None:
    assert vocabulary_of(DELTAS, MEMBERS, "here") == DraftVocabulary(IDS, VOCAB)
    tensors = DraftVocabulary(IDS, VOCAB).tensors()
    assert torch.equal(tensors["d2t"], DELTAS)
    assert torch.equal(tensors["t2d"], MEMBERS)


def test_rows_may_be_in_any_order() -> None:
    assert vocabulary_of(torch.tensor([7, 0, 3, -1]), MEMBERS, "here").ids == (7, 1, 5, 2)


@pytest.mark.parametrize(
    ("deltas", "members", "said"),
    [
        ([1, 1, 3, 5], MEMBERS, "outside the target's vocabulary of 8: 8"),
        ([-1, 1, 3, 4], MEMBERS, "outside the target's vocabulary of 8: -1"),
        ([1, 0, 3, 4], MEMBERS, "twice: 1"),
        ([1, 2, 5, 7], MEMBERS, "outside the target's vocabulary of 8: 10"),
        ([1, 1, 3, 4], ~MEMBERS, "differ on 8 tokens"),
        ([1, 1, 3, 4], MEMBERS.logical_or(torch.arange(8) == 0), "differ on 1 tokens: 0"),
        ([1, 1, 2, 4], MEMBERS, "differ on 2 tokens: 4, 5"),
        ([0] * 8, torch.ones(8, dtype=torch.bool), "1 to 7"),
        ([], torch.zeros(8, dtype=torch.bool), "1 to 7"),
    ],
    ids=[
        "past the end",
        "before the start",
        "twice",
        "ids taken for deltas",
        "the complement",
        "one more member",
        "another token",
        "all",
        "none",
    ],
)
def test_maps_that_are_none_are_refused(deltas: list[int], members: torch.Tensor, said: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        vocabulary_of(torch.tensor(deltas, dtype=torch.int64), members, "this/drafter")
    assert said in str(caught.value)
    assert caught.value.where == "this/drafter"
    assert caught.value.fix


class Counting:
    """A source that remembers the widest read."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights, self.widest = weights, 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.weights.items()}

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        assert 0 <= start <= stop <= len(self.weights[name])
        self.widest = max(self.widest, stop - start)
        return self.weights[name][start:stop]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_of_the_target_in_windows(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 199), unique=True, min_size=1))
    start = data.draw(st.integers(0, len(ids)))
    stop = data.draw(st.integers(start, len(ids)))
    target = Counting({"t": torch.arange(400).reshape(200, 2).float()})
    source = SelectedRows(Counting({"norm": torch.ones(3)}), target, "t", ids)
    before, draft_head._WINDOW = draft_head._WINDOW, 16
    try:
        found = source.rows("lm_head.weight", start, stop)
    finally:
        draft_head._WINDOW = before
    assert torch.equal(found, target.weights["t"][ids[start:stop]])
    assert target.widest <= 16
    assert source.shapes() == {"norm": (3,), "lm_head.weight": (len(ids), 2)}


@pytest.mark.parametrize("read", [lambda s: s.rows("lm_head.weight", 0, 4), lambda s: s.rows("lm_head.weight", 2, 1)])
def test_rows_that_are_not_there(read: Callable[[SelectedRows], torch.Tensor]) -> None:
    source = SelectedRows(Counting({}), Counting({"t": torch.zeros(8, 2)}), "t", (3, 1, 2))
    with pytest.raises(CheckpointError):
        read(source)
