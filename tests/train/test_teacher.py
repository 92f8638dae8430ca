"""Soft labels come from the target: recomputed from stored features, they are its own logits."""

from __future__ import annotations

import math

import pytest
import torch

from dflash_compile.train.blocks import IGNORED, pack
from dflash_compile.train.draft_forward import draft_hidden
from dflash_compile.train.teacher import Teacher
from dflash_compile.train.trainer import Vocabulary, block_loss

from .tiny import VOCAB, drafter, target


@pytest.mark.parametrize("taps", [(0, 1, 2), (1, 0), (2, 1)])
@torch.no_grad()
def test_the_teachers_rows_give_the_targets_logits(taps: tuple[int, ...]) -> None:
    model = target()
    tokens = torch.randint(8, VOCAB, (30,), generator=torch.Generator().manual_seed(4))
    out = model(tokens[None], output_hidden_states=True)
    features = torch.cat([out.hidden_states[tap + 1][0] for tap in taps], -1)
    batch = pack([(tokens.int(), features, 6)], anchors=9, block=5, generator=torch.Generator().manual_seed(0))
    batch = type(batch)(features[None, : batch.features.shape[1]], batch.anchors, batch.anchor_tokens, batch.labels)
    kept = batch.labels != IGNORED
    rows, which = Teacher(model, taps).rows(batch, kept)
    logits = rows @ model.lm_head.weight.T
    places = [anchor + k for i, anchor in enumerate(batch.anchors[0].tolist()) for k in range(4) if kept[0, i, k]]
    torch.testing.assert_close(logits[which], out.logits[0, places], atol=1e-4, rtol=1e-4)
    assert len(logits) == len(set(places)) < len(places), "a position that several blocks share is computed once"


def test_soft_loss_of_a_sure_teacher_is_the_hard_loss() -> None:
    """A teacher that puts everything on the label adds nothing to the cross-entropy."""
    model = drafter()
    head = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(8, VOCAB, (20,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    features = torch.randn(20, 192, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    batch = pack([(tokens, features, 4)], anchors=5, block=5, generator=torch.Generator().manual_seed(5))

    class Sure(Teacher):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def rows(self, batch: object, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return head[labels[kept]] * 100, torch.arange(int(kept.sum()))

    labels = batch.labels
    vocabulary = Vocabulary(head, None)
    hard, half, soft = (
        float(block_loss(model, batch, head, vocabulary, 4.0, Sure(), share).detach()) for share in (0.0, 0.5, 1.0)
    )
    assert soft == pytest.approx(hard, rel=1e-4)
    assert half == pytest.approx(hard, rel=1e-4)


def test_loss_is_the_weighted_mixture_worked_out_row_by_row() -> None:
    """Against cross-entropies taken one row at a time, of a teacher that knows nothing: its distribution is uniform."""
    model = drafter()
    head = torch.randn(VOCAB, 64, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(8, VOCAB, (12,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    features = torch.randn(12, 192, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    batch = pack([(tokens, features, 4)], anchors=5, block=5, generator=torch.Generator().manual_seed(5))
    assert (batch.labels == IGNORED).any(), "some blocks reach past the end"

    class Blank(Teacher):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def rows(self, batch: object, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros(1, 64), torch.zeros(int(kept.sum()), dtype=torch.long)

    with torch.no_grad():
        found = float(block_loss(model, batch, head, Vocabulary(head, None), 2.0, Blank(), 0.25))
        logits = draft_hidden(model, batch, head, 5, torch.float32)[0] @ head.T
    total = weights = 0.0
    for i in range(logits.shape[0]):
        for k in range(4):
            if (label := int(batch.labels[0, i, k])) != IGNORED:
                surprise = -logits[i, k].double().log_softmax(-1)
                weight = math.exp(-k / 2.0)
                total += weight * float(0.75 * surprise[label] + 0.25 * surprise.mean())
                weights += weight
    assert found == pytest.approx(total / weights, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_batch_without_a_label_in_the_vocabulary_moves_nothing(share: float) -> None:
    """A small vocabulary meets such batches; NaN here would end up in every weight."""
    plain, model = target(), drafter()
    head = plain.lm_head.weight.detach()
    tokens = torch.randint(8, VOCAB, (20,), generator=torch.Generator().manual_seed(2), dtype=torch.int32)
    features = torch.randn(20, 192, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    batch = pack([(tokens, features, 4)], anchors=5, block=5, generator=torch.Generator().manual_seed(5))
    batch = type(batch)(batch.features.float(), batch.anchors, batch.anchor_tokens, batch.labels)
    loss = block_loss(model, batch, head, Vocabulary(head, torch.arange(8)), 2.0, Teacher(plain, (0, 1, 2)), share)
    loss.backward()
    assert float(loss.detach()) == 0
    assert all((parameter.grad == 0).all() for parameter in model.parameters() if parameter.grad is not None)
