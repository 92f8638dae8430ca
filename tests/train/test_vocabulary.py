"""A reduced draft vocabulary in training: the tokens it holds, the loss over them, and a drafter that comes out with
it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import models
import pytest
import torch

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.runtime.errors import UsageError
from dflash_compile.train.data import Corpus
from dflash_compile.train.evaluate import evaluate
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.raw_text import TAG
from dflash_compile.train.recipe import train
from dflash_compile.train.trainer import Trainer
from dflash_compile.train.vocabulary import check_size, choose_vocabulary, coverage

from .tiny import HIDDEN, TAPS, VOCAB, drafter
from .tiny import target as tiny_target

OPTIONS = TrainOptions(
    layers=1,
    block=4,
    response_tokens=600,
    response_limit=24,
    text_tokens=400,
    held_out=5,
    steps=6,
    sequences=2,
    anchors=6,
    evaluate_every=4,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    folder = models.write_target(
        tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=4, max_position_embeddings=1024
    )
    return open_target(folder)


def test_the_most_frequent_tokens_and_every_end_token(checkpoint: TargetCheckpoint) -> None:
    """Ends are 0 and 2, the mask is 9.

    By hand: 50 (7 times), 40 and 41 (5), 300 (2), and of those said once the lowest.
    """
    counts = Counter({9: 99, 50: 7, 41: 5, 40: 5, 300: 2, 8: 1, 7: 1, 6: 1})
    assert set(checkpoint.spec.eos_ids) == {0, 2}
    assert choose_vocabulary(counts, 5, checkpoint.spec, 9).ids == (0, 2, 40, 41, 50)
    assert choose_vocabulary(counts, 7, checkpoint.spec, 9).ids == (0, 2, 6, 40, 41, 50, 300)
    assert choose_vocabulary(counts, 10, checkpoint.spec, 9).ids == (0, 1, 2, 6, 7, 8, 40, 41, 50, 300)
    assert choose_vocabulary(counts, 383, checkpoint.spec, 9).ids == (*range(9), *range(10, 384))


def test_how_much_is_covered() -> None:
    assert coverage(Counter({1: 6, 2: 3, 3: 1}), (1, 3, 7)) == pytest.approx(0.7)
    assert coverage(Counter(), (1,)) == 0


@pytest.mark.parametrize("size", [1, 2, 384, 400])
def test_sizes_that_are_no_reduction_are_refused(checkpoint: TargetCheckpoint, size: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ask for 3 to 383"):
        check_size(size, checkpoint.spec)
    with pytest.raises(UsageError, match="--draft-vocabulary"):
        train(checkpoint, tmp_path / "drafter", replace(OPTIONS, draft_vocabulary=size), tmp_path / "work")
    assert list(tmp_path.iterdir()) == []


def test_no_size_below_one() -> None:
    with pytest.raises(UsageError, match="draft_vocabulary"):
        TrainOptions(draft_vocabulary=0)


def test_plain_text_does_not_choose(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, 4, (0,), "tiny")
    for tokens, tag in (([5, 9, 9, 9], ""), ([5, 6, 7, 7], ""), ([5, 8, 8, 8], TAG), ([5, 6, 6, 7], "")):
        store.append(tokens, torch.zeros(4, 4), 1, tag)
    corpus = Corpus([store], held_out=4)
    assert corpus.token_counts(responses_only=True) == Counter({6: 3, 7: 3}), "nor does what is held out"
    assert corpus.token_counts() == Counter({8: 3, 6: 3, 7: 3})


def test_tau_counts_what_can_be_proposed(tmp_path: Path) -> None:
    """With a head that is always right on members: a label outside the vocabulary ends the block, though a whole head
    would have it.
    """
    store = FeatureStore(tmp_path / "features", len(TAPS) * HIDDEN, TAPS, "tiny")
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        store.append(
            torch.randint(8, 38, (40,), generator=generator).tolist(),
            torch.randn(40, len(TAPS) * HIDDEN, generator=generator),
            6,
        )
    corpus, weight = Corpus([store], 4), tiny_target().model.embed_tokens.weight.detach()
    options = TrainOptions(layers=2, block=5, steps=4, sequences=2, anchors=8, held_out=4)
    ids = torch.arange(8, 38)
    reduced = Trainer(drafter(block=5), weight, weight, corpus, options, tmp_path / "a", draft_ids=ids)
    masked = weight.clone()
    masked[[token for token in range(VOCAB) if token not in ids.tolist()]] = 0
    assert reduced.whole.head.shape == (30, HIDDEN)
    assert reduced.frequent is reduced.whole
    # Every label is a member and every hidden state favours some member, so a whole head without the other rows
    # proposes the same.
    dtype = reduced.compute.dtype
    whole = evaluate(reduced.model, weight, masked.to(dtype), reduced.held_out, 5, dtype)
    assert reduced.acceptance() == whole
    few = Trainer(drafter(block=5), weight, weight, corpus, options, tmp_path / "b", draft_ids=torch.arange(8, 10))
    outside = [(tokens.clamp(min=20), features, prompt) for tokens, features, prompt in few.held_out]
    assert evaluate(few.model, weight, few.whole.head, outside, 5, dtype, few.whole.labels).tau == 1.0
    before = reduced.model.fc.weight.detach().clone()
    reduced.run()
    assert not torch.equal(before, reduced.model.fc.weight)
    assert all(torch.isfinite(parameter).all() for parameter in reduced.model.parameters())


def test_a_reduced_drafter_comes_out_without_a_head(checkpoint: TargetCheckpoint, tmp_path: Path) -> None:
    drafter_folder = train(
        checkpoint, tmp_path / "drafter", replace(OPTIONS, draft_vocabulary=48), tmp_path / "work"
    ).drafter
    opened = open_drafter(drafter_folder)
    assert (opened.spec.dialect, opened.spec.draft_vocab) == ("speculators", 48)
    assert opened.vocabulary is not None
    assert set(checkpoint.spec.eos_ids) <= set(opened.vocabulary.ids)
    assert opened.spec.mask_id not in opened.vocabulary.ids
    assert "lm_head.weight" not in opened.tensors.shapes()
    assert not pair(checkpoint, opened).warnings
    readme = (drafter_folder / "README.md").read_text()
    for asked, size, same in (
        (None, 48, True),
        (48, 48, False),
        (60, 60, False),
    ):  # on other answers, from which others are the most frequent
        options = replace(OPTIONS, draft_vocabulary=asked, seed=5, steps=1)
        again = open_drafter(
            train(checkpoint, tmp_path / f"again {asked}", options, tmp_path / f"work {asked}", start=opened).drafter
        )
        assert again.vocabulary is not None
        assert (len(again.vocabulary.ids), again.vocabulary == opened.vocabulary) == (size, same)
    assert "48 of 384 tokens" in readme
    assert "- draft_vocabulary: 48" in readme
