"""Anchors, labels and weights against cases worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dflash_compile.train.blocks import IGNORED, block_labels, gamma_for, pack, row_weights, sample_anchors
from dflash_compile.train.evaluate import walk
from dflash_compile.train.options import TrainOptions, default_taps
from dflash_compile.train.trainer import Vocabulary, rate_at


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_labels_are_the_tokens_after_the_anchor_and_stop_at_the_end() -> None:
    tokens = torch.tensor([10, 11, 12, 13, 14], dtype=torch.int32)
    labels = block_labels(tokens, torch.tensor([0, 2, 3]), block=4)
    assert labels.tolist() == [[11, 12, 13], [13, 14, IGNORED], [14, IGNORED, IGNORED]]


def test_anchors_are_response_tokens_that_have_a_successor() -> None:
    anchors = sample_anchors(prompt=3, length=7, count=50, generator=_generator())
    assert anchors.tolist() == [3, 4, 5]
    assert sample_anchors(prompt=6, length=7, count=4, generator=_generator()).numel() == 0


def test_anchors_are_distinct_sorted_and_cover_the_response() -> None:
    seen: set[int] = set()
    for seed in range(40):
        anchors = sample_anchors(10, 30, 5, _generator(seed)).tolist()
        assert anchors == sorted(set(anchors))
        assert len(anchors) == 5
        seen |= set(anchors)
    assert seen == set(range(10, 29))


@pytest.mark.parametrize(("block", "gamma"), [(16, 7.0), (10, 5.0), (8, 4.0), (4, 2.0)])
def test_decay_follows_the_published_points(block: int, gamma: float) -> None:
    assert gamma_for(block) == gamma


def test_row_weights_start_at_one_and_decay() -> None:
    assert torch.allclose(row_weights(4, 4.0), torch.tensor([1.0, math.exp(-0.25), math.exp(-0.5)]))


def test_padded_anchors_carry_no_labels_and_contexts_are_cut() -> None:
    long = (torch.arange(20, dtype=torch.int32), torch.ones(20, 6, dtype=torch.bfloat16), 4)
    short = (torch.arange(6, dtype=torch.int32), torch.ones(6, 6, dtype=torch.bfloat16), 3)
    batch = pack([long, short], anchors=8, block=3, generator=_generator())
    assert batch.anchors.shape == (2, 8)
    assert batch.features.shape[1] == min(int(batch.anchors.max()) + 2, 20)
    assert (batch.labels[1, 2:] == IGNORED).all()
    assert (batch.labels[0] != IGNORED).any(-1).all()
    assert (batch.features[1, 6:] == 0).all()


def test_a_share_of_the_blocks_is_narrower_and_has_no_labels_behind_its_width() -> None:
    tokens, features = torch.arange(600, dtype=torch.int32), torch.zeros(600, 3, dtype=torch.bfloat16)
    batch = pack([(tokens, features, 4)], 500, 6, torch.Generator().manual_seed(0), narrow_share=0.5)
    assert batch.widths is not None
    labelled = (batch.labels != IGNORED).sum(-1)
    inside = batch.anchors < 594  # further on the sequence ends first
    assert torch.equal(labelled[inside], batch.widths[inside] - 1)
    counts = torch.bincount(batch.widths.flatten(), minlength=7) / 500
    assert counts[:2].sum() == 0
    assert 0.4 < counts[6] < 0.6, "the others are whole"
    assert all(0.08 < share < 0.18 for share in counts[2:6]), "every narrower width as often as the others"


def test_walk_counts_cycles_like_the_loop() -> None:
    # anchors 0..5; 2 accepted at 0 moves to 3, none at 3 moves to 4, 1 at 4 moves to 6 = the end
    result = walk(torch.tensor([2, 9, 9, 0, 1, 9]), block=4)
    assert (result.tokens, result.cycles, result.reached) == (6, 3, (2, 1, 0))
    assert result.tau == 2.0


def test_a_reduced_loss_vocabulary_ignores_what_it_lacks() -> None:
    vocabulary = Vocabulary(torch.arange(10.0)[:, None], torch.tensor([2, 5, 7]))
    assert vocabulary.head[:, 0].tolist() == [2, 5, 7]
    assert vocabulary.labels(torch.tensor([5, 3, IGNORED, 7])).tolist() == [1, IGNORED, IGNORED, 2]


def test_learning_rate_warms_up_then_falls_to_nothing() -> None:
    options = TrainOptions(learning_rate=1.0, warm_up=0.1)
    rates = [rate_at(done, options) for done in (0.0, 0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])


@pytest.mark.parametrize("layers", [3, 4, 30, 36, 64])
def test_default_taps_never_reach_the_last_layer(layers: int) -> None:
    taps = default_taps(layers)
    assert list(taps) == sorted(set(taps))
    assert max(taps) == layers - 2
