"""The target's own next-token distribution, recomputed from the last stored tap.

A stored feature ends with the output of a late layer, so the few layers after it and the final norm give back the
hidden state the target's head saw. Soft labels from it teach far more per response token than the one token that was
said.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from .blocks import BlockBatch
from .compute import Compute


class Teacher(nn.Module):
    """The target's layers after its last tap, frozen."""

    def __init__(self, target: Any, taps: tuple[int, ...]) -> None:
        """`target` is the transformers model; `taps` are the 0-based layers whose outputs the features hold, in
        order.
        """
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in target.model.layers[max(taps) + 1 :])
        self.norm, self.rotary = copy.deepcopy(target.model.norm), copy.deepcopy(target.model.rotary_emb)
        self.start = taps.index(max(taps)) * target.config.hidden_size
        self.width = target.config.hidden_size
        self.requires_grad_(False)

    def on(self, compute: Compute) -> Teacher:
        """Itself where and as `compute` says.

        The rotary frequencies stay float32: rounded, they drift with distance.
        """
        self.layers.to(compute.device, compute.dtype)
        self.norm.to(compute.device, compute.dtype)
        self.rotary.to(compute.device)
        return self

    @torch.no_grad()
    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """What the head saw at every position: [N, T, taps_width] to [N, T, H].

        Rows past a sequence's end mean nothing.
        """
        x = features[..., self.start : self.start + self.width].to(self.norm.weight.dtype)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        rotary = self.rotary(x, positions)
        for layer in self.layers:  # no mask: transformers' attention is then causal
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotary)
        return self.norm(x)  # type: ignore[no-any-return]

    def rows(self, batch: BlockBatch, kept: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the head saw before each proposal that `kept` (bool [N, A, B - 1]) marks: hidden states [U, H] and int64
        [kept].

        The second says which row of the first belongs to each kept proposal: that of the token before it. Blocks
        overlap, so there are fewer rows than proposals.
        """
        hidden = self.hidden(batch.features)
        sequences, length = hidden.shape[:2]
        places = batch.anchors[:, :, None] + torch.arange(kept.shape[-1], device=hidden.device)
        places = places.clamp(max=length - 1) + length * torch.arange(sequences, device=hidden.device)[:, None, None]
        used, which = places[kept].unique(return_inverse=True)
        return hidden.flatten(0, 1)[used], which
