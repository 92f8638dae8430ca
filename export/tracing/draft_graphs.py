"""The drafter's two graphs as modules behind the signatures of `signature.py`: inject and draft."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F

from ..dflash.v1 import CachedAttend, DflashV1
from ..ops.semantic import rms_norm
from .rope import RotaryTables


class InjectGraph(nn.Module):
    """Context K/V of newly committed tokens, written to the draft cache."""

    def __init__(self, drafter: DflashV1, rotary: RotaryTables, rings: Collection[int] = ()) -> None:
        super().__init__()
        self.drafter, self.rotary, self.rings = drafter, rotary, frozenset(rings)

    def forward(self, taps: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """taps [1, S, n * H], position int32 [1], caches [1, kv, L, hd] (k, v per layer): the updated caches."""
        attend = CachedAttend(self.drafter.spec, self.rotary.cos, self.rotary.sin, position, list(caches), self.rings)
        return tuple(attend.inject(self.drafter, taps))


class DraftGraph(nn.Module):
    """One block of proposals: the target's embedding, the draft layers, a head over the tokens that can be proposed."""

    def __init__(self, drafter: DflashV1, rotary: RotaryTables, vocab: int, rings: Collection[int] = ()) -> None:
        """`vocab` is the target's; the head has as many rows, or those of the drafter's reduced vocabulary.

        `rings` are layers, as in `CachedAttend`.
        """
        super().__init__()
        self.drafter, self.rotary, self.rings = drafter, rotary, frozenset(rings)
        width = drafter.spec.hidden
        self.embedding = nn.Parameter(torch.empty(vocab, width), requires_grad=False)
        self.head = nn.Parameter(torch.empty(drafter.spec.draft_vocab or vocab, width), requires_grad=False)

    def forward(self, block: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """block int32 [1, B] (anchor, then masks): logits [1, B - 1, head rows] of its proposals, updated caches.

        Those are of the rows after the anchor; where the anchor's row proposes as well, the last mask is not run.
        """
        attend = CachedAttend(self.drafter.spec, self.rotary.cos, self.rotary.sin, position, list(caches), self.rings)
        rows = block[:, :-1] if self.drafter.spec.sample_from_anchor else block
        hidden = self.drafter(F.embedding(rows, self.embedding), attend)
        if not self.drafter.spec.sample_from_anchor:
            hidden = hidden[:, 1:]
        return self.drafter.scores(F.linear(hidden, self.head), hidden, block[:, :1]), *attend.caches


class DraftBody(nn.Module):
    """The draft layers without the target's table: on rows that were embedded before, and to what the target's head
    reads, or through a head of the drafter's own.
    """

    def __init__(
        self, drafter: DflashV1, rotary: RotaryTables, head_rows: int | None, rings: Collection[int] = ()
    ) -> None:
        """`head_rows` are those of the drafter's head, None where the target's serves."""
        super().__init__()
        self.drafter, self.rotary, self.rings = drafter, rotary, frozenset(rings)
        weight = None if head_rows is None else torch.empty(head_rows, drafter.spec.hidden)
        self.head = None if weight is None else nn.Parameter(weight, requires_grad=False)

    def forward(
        self, embedded: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """embedded [1, B, H] (anchor, then masks; one less where the anchor's row proposes): hidden [1, B - 1, H] or
        logits [1, B - 1, head rows] of the proposals, updated caches.
        """
        attend = CachedAttend(self.drafter.spec, self.rotary.cos, self.rotary.sin, position, list(caches), self.rings)
        hidden = self.drafter(embedded, attend)
        if not self.drafter.spec.sample_from_anchor:
            hidden = hidden[:, 1:]
        # The scores of such drafters do not ask for the anchor.
        scored = hidden if self.head is None else self.drafter.scores(F.linear(hidden, self.head), hidden, hidden)
        return scored, *attend.caches


@contextmanager
def semantic_norms() -> Iterator[None]:
    """`nn.RMSNorm` as the semantic operator, until the context ends."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, module.weight, float(module.eps))  # type: ignore[no-any-return]

    with patch.object(nn.RMSNorm, "forward", forward):
        yield
