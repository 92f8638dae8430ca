"""Refinement of a draft inside its graph: keep the proposals it is surest of, mask the others again, run again.

Unrolled, so that a graph has a fixed number of passes and nothing to decide while it runs. The schedule is that of
mask-predict decoding with proposals that stay once they are kept (MaskGIT, Chang et al. 2022, with a linear schedule).
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from ..dflash.v1 import DflashV1
from .draft_graphs import DraftGraph
from .rope import RotaryTables


class RefinedDraft(DraftGraph):
    """A draft of `refine + 1` passes behind the ports of a draft of one.

    After pass i the ceil((B - 1) * i / (refine + 1)) proposals of the largest softmax probability stand in the block as
    tokens; the rest are masks in the next pass. A kept proposal stays: its row of the result is that of the pass that
    made it.
    """

    ids: torch.Tensor | None

    def __init__(
        self, drafter: DflashV1, rotary: RotaryTables, vocab: int, refine: int, rings: Collection[int] = ()
    ) -> None:
        """A reduced head has a buffer `ids` int32 [draft_vocab], the token of each of its rows, to be filled like a
        weight.
        """
        super().__init__(drafter, rotary, vocab, rings)
        self.refine = refine
        size = drafter.spec.draft_vocab
        self.register_buffer("ids", None if size is None else torch.empty(size, dtype=torch.int32))

    def forward(self, block: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """As `DraftGraph`: logits [1, B - 1, V], each row of the pass that settled it, and the caches of the last
        pass.
        """
        masks, proposals = block[:, 1:], block.shape[1] - 1
        # Every pass starts from the caches as they came: the block's rows are overwritten in any case, and only the
        # last pass's leave the graph.
        logits, *written = super().forward(block, position, *caches)
        kept = torch.zeros_like(masks, dtype=torch.bool)
        for done in range(1, self.refine + 1):
            kept = most_confident(logits, kept, (proposals * done + self.refine) // (self.refine + 1))
            tokens = torch.where(kept, self._tokens(logits.argmax(-1)).to(block.dtype), masks)
            again, *written = super().forward(torch.cat([block[:, :1], tokens], dim=1), position, *caches)
            logits = torch.where(kept[..., None], logits, again)
        return logits, *written

    def _tokens(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.ids is None else self.ids[rows]


def most_confident(logits: torch.Tensor, kept: torch.Tensor, count: int) -> torch.Tensor:
    """Which `count` rows of logits [1, R, V] have the largest softmax probability, bool [1, R]; rows in `kept` come
    first, then the earlier of equals.
    """
    confidence = torch.where(kept, 2.0, logits.softmax(-1).amax(-1))
    row = torch.arange(kept.shape[1], device=kept.device)
    mine, other = confidence[:, :, None], confidence[:, None, :]
    ahead = (other > mine) | ((other == mine) & (row[None, :] < row[:, None]))
    return ahead.sum(-1) < count
