"""The target in verification mode: a transformers decoder behind the target signature of `signature.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import MoeModelOutputWithPast

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


class TargetBody(VerificationTarget):
    """The same without table and head: from rows of the table to what the head reads."""

    def forward(
        self, embedded: torch.Tensor, position: torch.Tensor, pick: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """As `VerificationTarget`, from embedded [1, S, H] and to hidden [1, R, H], behind the final norm."""
        run = Pass(position, pick, list(caches), self.rings, rows=embedded)
        _, *others = self._run(torch.zeros(embedded.shape[:2], dtype=torch.int32, device=embedded.device), run)
        assert run.hidden is not None
        return run.hidden, *others


class TargetTable(nn.Module):
    """The embedding table of a decoder, and what its family does to tokens before it looks them up."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens int32 [1, S] to their rows [1, S, H], before whatever the family does to those."""
        found: list[torch.Tensor] = []

        def look_up(input_ids: torch.Tensor, **_: Any) -> MoeModelOutputWithPast:
            found.append(F.embedding(input_ids, self.model.get_input_embeddings().weight))
            return MoeModelOutputWithPast(last_hidden_state=found[0])

        with patch.object(self.model.get_decoder(), "forward", look_up):
            self.model(input_ids=tokens, use_cache=False)
        return found[0]


class TargetHead(nn.Module):
    """The head of a decoder, and what its family does to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [1, S, H], behind the final norm, to logits [1, S, V]."""
        given = MoeModelOutputWithPast(last_hidden_state=hidden)
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int32, device=hidden.device)
        with patch.object(self.model.get_decoder(), "forward", lambda *_, **__: given):
            return self.model(input_ids=tokens, use_cache=False).logits  # type: ignore[no-any-return]


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
