"""The packed training pass equals the cached graph, one block at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dflash_compile.export.dflash.v1 import CachedAttend, DflashV1
from dflash_compile.export.tracing.rope import drafter_tables
from dflash_compile.train.blocks import pack
from dflash_compile.train.draft_forward import BlockAttend, draft_hidden

from .tiny import HIDDEN, TAPS, VOCAB, drafter, target

BLOCK = 5


def _cached(
    model: DflashV1, features: torch.Tensor, anchor: int, token: int, embedding: torch.Tensor, width: int = BLOCK
) -> torch.Tensor:
    """Inject the context, draft one block of `width` rows: the way an engine does it."""
    spec = model.spec
    cos, sin = drafter_tables(spec, 128)
    caches = [torch.full((1, spec.kv_heads, 64, spec.head_dim), 9.0) for _ in range(2 * spec.layers)]
    caches = CachedAttend(spec, cos, sin, torch.tensor([0], dtype=torch.int32), caches).inject(
        model, features[None, :anchor]
    )
    block = torch.tensor([[token] + [spec.mask_id] * (width - 1)])
    attend = CachedAttend(spec, cos, sin, torch.tensor([anchor], dtype=torch.int32), caches)
    if spec.sample_from_anchor:
        return model(embedding[block[:, :-1]], attend)[0]
    return model(embedding[block], attend)[0, 1:]


VARIANTS = {
    "full": {},
    "windowed": {"windows": (4, None), "causal": (False, False)},
    "scaled positions": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "scaled positions and queries": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    },
    "from the anchor": {"sample_from_anchor": True},
    "from the anchor, windowed": {"sample_from_anchor": True, "windows": (4, None), "causal": (False, True)},
    "window from the anchor": {"windows": (4, None), "causal": (False, False), "windows_from_anchor": True},
    "causal window from the anchor": {"windows": (2, 6), "causal": (True, True), "windows_from_anchor": True},
    "causal window": {"windows": (3, 6), "causal": (True, False)},
}


@pytest.mark.parametrize("narrow_share", [0.0, 0.8])
@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_packed_blocks_equal_cached_blocks(variant: str, narrow_share: float) -> None:
    model = drafter(block=BLOCK, **VARIANTS[variant])  # type: ignore[arg-type]
    embedding = target().model.embed_tokens.weight
    generator = torch.Generator().manual_seed(1)
    sequences = []
    for length, prompt in ((24, 5), (17, 9)):
        tokens = torch.randint(VOCAB, (length,), generator=generator, dtype=torch.int32)
        features = torch.randn(length, len(TAPS) * HIDDEN, generator=generator).to(torch.bfloat16)
        sequences.append((tokens, features, prompt))
    batch = pack(sequences, anchors=6, block=BLOCK, generator=generator, narrow_share=narrow_share)
    widths = torch.full_like(batch.anchors, BLOCK) if batch.widths is None else batch.widths
    assert (len(widths.unique()) > 1) == (narrow_share > 0)
    batch = replace(batch, features=batch.features.float())
    packed = draft_hidden(model, batch, embedding, BLOCK, torch.float32)
    for i, (tokens, features, _) in enumerate(sequences):
        for j, anchor in enumerate(batch.anchors[i].tolist()):
            if (batch.labels[i, j] == -100).all():
                continue
            width = int(widths[i, j])
            expected = _cached(model, features.float(), anchor, int(tokens[anchor]), embedding, width)
            torch.testing.assert_close(packed[i, j, : width - 1], expected, atol=2e-5, rtol=1e-4)


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
    after = draft_hidden(
        model, type(batch)(changed, wide.anchors, wide.anchor_tokens, wide.labels), embedding, BLOCK, torch.float32
    )
    torch.testing.assert_close(before[0, :5], after[0, :5])
    assert not torch.allclose(before[0, 5:], after[0, 5:], atol=1e-3)


@pytest.mark.parametrize(
    ("window", "seen"),
    [(None, ["111000", "111000", "111110", "111110"]), (3, ["011000", "001000", "000110", "000010"])],
    ids=["full", "window of 3"],
)
@torch.no_grad()
def test_the_context_mask_is_the_one_drawn_by_hand(window: int | None, seen: list[str]) -> None:
    """Blocks of 2 rows at anchors 3 and 5 (rows at 3, 4 and 5, 6) over a context of 6."""
    model = drafter(block=2, windows=(window, window), causal=(False, False))
    attend = BlockAttend(model, torch.zeros(1, 6, HIDDEN), torch.tensor([[3, 5]]), 2, torch.float32)
    for bias in attend.context_bias:
        assert ["".join("1" if cell == 0 else "0" for cell in row) for row in bias[0, 0, 0].tolist()] == seen


@pytest.mark.parametrize(
    ("causal", "window", "seen"),
    [
        (False, None, ["111", "111", "111"]),
        (True, None, ["100", "110", "111"]),
        (False, 2, ["110", "111", "011"]),
        (True, 2, ["100", "110", "011"]),
    ],
    ids=str,
)
@torch.no_grad()
def test_the_mask_inside_a_block_is_the_one_drawn_by_hand(causal: bool, window: int | None, seen: list[str]) -> None:
    model = drafter(block=3, windows=(window, window), causal=(causal, causal))
    attend = BlockAttend(model, torch.zeros(1, 4, HIDDEN), torch.tensor([[2]]), 3, torch.float32)
    assert [
        "".join("1" if cell == 0 else "0" for cell in row) for row in attend._block_bias(1, torch.zeros(1)).tolist()
    ] == seen


@torch.no_grad()
def test_longer_sequences_than_before_get_longer_tables() -> None:
    """The rotary tables are kept from call to call; a short sequence first must not spoil a long one after it."""
    embedding = target().model.embed_tokens.weight
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(VOCAB, (40,), generator=generator, dtype=torch.int32)
    features = torch.randn(40, len(TAPS) * HIDDEN, generator=generator).to(torch.bfloat16)
    long = pack([(tokens, features, 30)], anchors=4, block=BLOCK, generator=generator)
    short = pack([(tokens[:9], features[:9], 3)], anchors=2, block=BLOCK, generator=generator)
    used, fresh = drafter(block=BLOCK), drafter(block=BLOCK)
    draft_hidden(used, short, embedding, BLOCK, torch.float32)
    torch.testing.assert_close(
        draft_hidden(used, long, embedding, BLOCK, torch.float32),
        draft_hidden(fresh, long, embedding, BLOCK, torch.float32),
    )
