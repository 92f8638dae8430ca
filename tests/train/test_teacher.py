"""Soft labels come from the target: recomputed from stored features, they are its own logits."""

from __future__ import annotations

import pytest
import torch

from dflash_compile.train.blocks import IGNORED, pack
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
    rows = Teacher(model, taps).rows(batch) @ model.lm_head.weight.T
    for i, anchor in enumerate(batch.anchors[0].tolist()):
        for k in range(4):
            if batch.labels[0, i, k] != IGNORED:
                torch.testing.assert_close(rows[0, i, k], out.logits[0, anchor + k], atol=1e-4, rtol=1e-4)


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

        def rows(self, batch: object) -> torch.Tensor:
            return head[labels.clamp(min=0)] * 100

    labels = batch.labels
    vocabulary = Vocabulary(head, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hard = block_loss(model, batch, head, vocabulary, 4.0)
        soft = block_loss(model, batch, head, vocabulary, 4.0, Sure(), 1.0)
    assert float(soft) == pytest.approx(float(hard), rel=1e-2)
