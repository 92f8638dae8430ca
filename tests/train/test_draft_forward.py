"""The packed training pass equals the cached graph, one block at a time."""

from __future__ import annotations

import pytest
import torch

from dflash_compile.export.dflash_v1 import CachedAttend, DflashV1
from dflash_compile.export.rope import drafter_tables
from dflash_compile.train.blocks import pack
from dflash_compile.train.draft_forward import draft_hidden

from .tiny import HIDDEN, TAPS, VOCAB, drafter, target

BLOCK = 5


def _cached(model: DflashV1, features: torch.Tensor, anchor: int, token: int, embedding: torch.Tensor) -> torch.Tensor:
    """Inject the context, draft one block: the way an engine does it."""
    spec = model.spec
    cos, sin = drafter_tables(spec, 128)
    caches = [torch.full((1, spec.kv_heads, 64, spec.head_dim), 9.0) for _ in range(2 * spec.layers)]
    caches = CachedAttend(spec, cos, sin, torch.tensor([0], dtype=torch.int32), caches).inject(model, features[None, :anchor])
    block = torch.tensor([[token] + [spec.mask_id] * (BLOCK - 1)])
    attend = CachedAttend(spec, cos, sin, torch.tensor([anchor], dtype=torch.int32), caches)
    return model(embedding[block], attend)[0, 1:]


VARIANTS = {
    "full": {},
    "windowed": {"windows": (4, None), "causal": (False, False)},
    "scaled positions": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "scaled positions and queries": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    "causal window": {"windows": (3, 6), "causal": (True, False)},
}


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_packed_blocks_equal_cached_blocks(variant: str) -> None:
    model = drafter(block=BLOCK, **VARIANTS[variant])  # type: ignore[arg-type]
    embedding = target().model.embed_tokens.weight
    generator = torch.Generator().manual_seed(1)
    sequences = []
    for length, prompt in ((24, 5), (17, 9)):
        tokens = torch.randint(VOCAB, (length,), generator=generator, dtype=torch.int32)
        features = torch.randn(length, len(TAPS) * HIDDEN, generator=generator).to(torch.bfloat16)
        sequences.append((tokens, features, prompt))
    batch = pack(sequences, anchors=6, block=BLOCK, generator=generator)
    batch = type(batch)(batch.features.float(), batch.anchors, batch.anchor_tokens, batch.labels)
    packed = draft_hidden(model, batch, embedding, BLOCK, torch.float32)
    for i, (tokens, features, _) in enumerate(sequences):
        for j, anchor in enumerate(batch.anchors[i].tolist()):
            if (batch.labels[i, j] == -100).all():
                continue
            expected = _cached(model, features.float(), anchor, int(tokens[anchor]), embedding)
            torch.testing.assert_close(packed[i, j], expected, atol=2e-5, rtol=1e-4)


@torch.no_grad()
def test_blocks_do_not_see_each_other_nor_their_own_future() -> None:
    model = drafter(block=BLOCK)
    embedding = target().model.embed_tokens.weight
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (30,), generator=generator, dtype=torch.int32)
    features = torch.randn(30, len(TAPS) * HIDDEN, generator=generator).to(torch.bfloat16)
    batch = pack([(tokens, features, 4)], anchors=10, block=BLOCK, generator=generator)
    wide = type(batch)(batch.features.float(), batch.anchors, batch.anchor_tokens, batch.labels)
    before = draft_hidden(model, wide, embedding, BLOCK, torch.float32)
    anchor = int(wide.anchors[0, 4])
    changed = wide.features.clone()
    changed[:, anchor:] += 1.0
    after = draft_hidden(model, type(batch)(changed, wide.anchors, wide.anchor_tokens, wide.labels), embedding, BLOCK, torch.float32)
    torch.testing.assert_close(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:], atol=1e-3)
