"""The target's own next-token distribution, recomputed from the last stored tap.

A stored feature ends with the output of a late layer, so the few layers after it and the final norm give back the
hidden state the target's head saw. Soft labels from it teach far more per response token than the one token that was said.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from .blocks import BlockBatch


class Teacher(nn.Module):
    """The target's layers after its last tap, frozen."""

    def __init__(self, target: Any, taps: tuple[int, ...]) -> None:
        """`target` is the transformers model; `taps` are the 0-based layers whose outputs the features hold, in order."""
        super().__init__()
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer in target.model.layers[max(taps) + 1 :])
        self.norm, self.rotary = copy.deepcopy(target.model.norm), copy.deepcopy(target.model.rotary_emb)
        self.start = taps.index(max(taps)) * target.config.hidden_size
        self.width = target.config.hidden_size
        self.requires_grad_(False)

    def low(self, device: str) -> Teacher:
        """Itself on `device` with bfloat16 weights. The rotary frequencies stay float32: rounded, they drift with distance."""
        self.layers.to(device, torch.bfloat16)
        self.norm.to(device, torch.bfloat16)
        self.rotary.to(device)
        return self

    @torch.no_grad()
    def hidden(self, features: torch.Tensor) -> torch.Tensor:
        """What the head saw at every position: [N, T, taps_width] to [N, T, H]. Rows past a sequence's end mean nothing."""
        x = features[..., self.start : self.start + self.width].to(self.norm.weight.dtype)
        positions = torch.arange(x.shape[1], device=x.device)[None]
        rotary = self.rotary(x, positions)
        for layer in self.layers:  # no mask: transformers' attention is then causal
            x = layer(x, attention_mask=None, position_ids=positions, position_embeddings=rotary)
        return self.norm(x)  # type: ignore[no-any-return]

    def rows(self, batch: BlockBatch) -> torch.Tensor:
        """Its hidden state for every proposal of a batch, [N, A, B - 1, H]: that of the token before the one proposed."""
        hidden = self.hidden(batch.features)
        count = batch.labels.shape[-1]
        places = batch.anchors[:, :, None] + torch.arange(count, device=hidden.device)
        places = places.clamp(max=hidden.shape[1] - 1).flatten(1)
        rows = hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
        return rows.view(*batch.labels.shape, -1)
