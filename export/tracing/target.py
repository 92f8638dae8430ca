"""The target in verification mode: a transformers decoder behind the target signature of `signature.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .hooks import Hooks, Pass
from .rope import LayeredTables


class VerificationTarget(nn.Module):
    """`model` (hooked, see `hooks.hooked`) as a function of tokens, position and caches. Takes over its rotary module.

    Runs eagerly with real weights, which makes it the reference, and under `torch.export` with fake ones.
    """

    def __init__(
        self,
        model: Any,
        hooks: Hooks,
        taps: Sequence[int],
        tables: Mapping[str, torch.Tensor],
        rings: Collection[int] = (),
    ) -> None:
        """`tables` are those of `rope.rotary_tables`; `rings` are the layers whose caches are rings."""
        super().__init__()
        self.model = model
        self.hooks = hooks
        self.taps, self.rings = tuple(taps), frozenset(rings)
        model.get_decoder().rotary_emb = LayeredTables(tables)

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, pick: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """tokens int32 [1, S], position int32 [1], pick int32 [R], caches (k, v per layer) [1, kv, L, hd].

        Returns logits [1, R, V], taps [1, S, n * H] in list order, then the updated caches.
        """
        return self._run(tokens, Pass(position, pick, list(caches), self.rings))

    def _run(self, tokens: torch.Tensor, run: Pass) -> tuple[torch.Tensor, ...]:
        self.hooks.running = run
        try:
            positions = (run.position + torch.arange(tokens.shape[1], device=tokens.device))[None]
            logits = self.model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        finally:
            self.hooks.running = None
        taps = torch.cat([run.taps[layer] for layer in self.taps], dim=-1)
        return logits, taps, *run.caches


class EmbedsTarget(VerificationTarget):
    """The same for the text decoder of a multimodal model, some of whose rows come from an encoder."""

    def forward(  # type: ignore[override]
        self,
        tokens: torch.Tensor,
        position: torch.Tensor,
        pick: torch.Tensor,
        embeds: torch.Tensor,
        given: torch.Tensor,
        *caches: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """As `VerificationTarget`; rows of `embeds` [1, S, H] take the place of embedded tokens where `given`, int32
        [1, S], is not 0.
        """
        return self._run(tokens, Pass(position, pick, list(caches), self.rings, embeds=embeds, given=given))
