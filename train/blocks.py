"""Training blocks: which anchors, which labels, how much each row weighs.

Pure functions on ids; the recipe is the one of the DFlash paper: random anchors inside the response, row k of a block
predicts the token k places after the anchor, weight exp(-(k - 1) / gamma).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

IGNORED = -100
NARROWEST = 2
"""rows of the narrowest block: an anchor and one proposal"""


def gamma_for(block: int) -> float:
    """The recipe's decay for `block` rows: the published points, straight lines between them, half the block below and
    7 / 16 of it above.
    """
    if block <= 10:
        return block / 2
    return 5.0 + (block - 10) / 3 if block <= 16 else block * 7 / 16


def row_weights(block: int, gamma: float) -> torch.Tensor:
    """Loss weight of rows 1..block-1, float32 [block - 1]; the anchor row predicts nothing."""
    return torch.exp(-torch.arange(block - 1, dtype=torch.float32) / gamma)


def sample_anchors(prompt: int, length: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Up to `count` distinct anchor positions, sorted: response tokens that still have a token after them.

    `prompt` is the number of prompt tokens: at inference the first anchor is the first response token.
    """
    candidates = length - 1 - prompt
    if candidates <= 0:
        return torch.empty(0, dtype=torch.long)
    chosen = torch.randperm(candidates, generator=generator)[:count]
    return (chosen + prompt).sort().values


def block_labels(tokens: torch.Tensor, anchors: torch.Tensor, block: int) -> torch.Tensor:
    """Token ids after each anchor, int64 [anchors, block - 1]; `IGNORED` past the end of the sequence."""
    places = anchors[:, None] + torch.arange(1, block)
    inside = places < len(tokens)
    labels = tokens.long()[places.clamp(max=len(tokens) - 1)]
    return torch.where(inside, labels, IGNORED)


@dataclass(frozen=True)
class BlockBatch:
    """N sequences padded to T tokens, A anchors each, blocks of B rows."""

    features: torch.Tensor
    """[N, T, taps_width] bfloat16: context features; rows past a sequence's end are never attended to"""
    anchors: torch.Tensor
    """int64 [N, A]: positions; padded anchors repeat and carry no labels"""
    anchor_tokens: torch.Tensor
    """int64 [N, A]"""
    labels: torch.Tensor
    """int64 [N, A, B - 1], `IGNORED` where there is none"""
    widths: torch.Tensor | None = None
    """int64 [N, A]: rows of each block, 2 to B; a row behind them is no part of it and has no label. None: all B"""

    def to(self, device: torch.device) -> BlockBatch:
        """The same on `device`."""
        widths = None if self.widths is None else self.widths.to(device)
        return BlockBatch(
            self.features.to(device),
            self.anchors.to(device),
            self.anchor_tokens.to(device),
            self.labels.to(device),
            widths,
        )


def pack(
    sequences: list[tuple[torch.Tensor, torch.Tensor, int]],
    anchors: int,
    block: int,
    generator: torch.Generator,
    narrow_share: float = 0.0,
) -> BlockBatch:
    """Batch (tokens [t], features [t, width], prompt length) triples; features are cut behind the last block used,
    anchors to the most that any has.

    `narrow_share` of the blocks get widths below `block`, each as likely as the others.
    """
    picked = [sample_anchors(prompt, len(tokens), anchors, generator) for tokens, _, prompt in sequences]
    longest = max(
        min(int(p.max()) + block - 1, len(tokens))
        for p, (tokens, _, _) in zip(picked, sequences, strict=True)
        if len(p)
    )
    anchors = max(len(p) for p in picked)  # rows of anchors that no sequence has would be computed for nothing
    width = sequences[0][1].shape[1]
    features = torch.zeros(len(sequences), longest, width, dtype=torch.bfloat16)
    places = torch.zeros(len(sequences), anchors, dtype=torch.long)
    anchor_tokens = torch.zeros_like(places)
    labels = torch.full((len(sequences), anchors, block - 1), IGNORED)
    for i, ((tokens, rows, _), chosen) in enumerate(zip(sequences, picked, strict=True)):
        used = len(chosen)
        features[i, : min(len(rows), longest)] = rows[:longest]
        places[i, :used] = chosen
        anchor_tokens[i, :used] = tokens.long()[chosen]
        labels[i, :used] = block_labels(tokens, chosen, block)
    if not narrow_share or block == NARROWEST:
        return BlockBatch(features, places, anchor_tokens, labels)
    widths = torch.randint(NARROWEST, block, places.shape, generator=generator)
    widths = torch.where(torch.rand(places.shape, generator=generator) < narrow_share, widths, block)
    labels[torch.arange(1, block) >= widths[:, :, None]] = IGNORED
    return BlockBatch(features, places, anchor_tokens, labels, widths)
