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


@contextmanager
def semantic_norms() -> Iterator[None]:
    """`nn.RMSNorm` as the semantic operator, until the context ends."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, module.weight, float(module.eps))  # type: ignore[no-any-return]

    with patch.object(nn.RMSNorm, "forward", forward):
        yield
