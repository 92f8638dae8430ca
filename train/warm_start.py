"""A first guess of the drafter's weights: the target's own last layers.

The context feature starts as the last tap, normed as the last layer norms its input; the draft layers start as the
target's last layers. Query and key norms, which the target may lack, start at the size its own queries and keys have.
"""

from __future__ import annotations

from typing import Any

import torch

from dflash_compile.export.dflash.v1 import DflashV1


@torch.no_grad()
def _projection_sizes(target: Any, layers: list[Any], tokens: torch.Tensor) -> dict[Any, float]:
    """Root mean square of each layer's query and key projections on `tokens` [1, S]."""
    sizes: dict[Any, float] = {}

    def remember(module: Any, _: Any, out: torch.Tensor) -> None:
        sizes[module] = float(out.float().square().mean().sqrt())

    handles = [
        p.register_forward_hook(remember) for layer in layers for p in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    ]
    target(tokens)
    for handle in handles:
        handle.remove()
    return sizes


@torch.no_grad()
def warm_start(model: DflashV1, target: Any, sample: torch.Tensor) -> None:
    """Copy the target's last `model.spec.layers` decoder layers and final norm into `model`.

    `sample` int64 [1, S]: any text, to measure the size of queries and keys. Requires equal layer shapes (head sizes,
    intermediate width); the caller chooses the drafter's spec from the target's.
    """
    sources = list(target.model.layers)[-model.spec.layers :]
    sizes = _projection_sizes(target, sources, sample)
    for layer, source in zip(model.draft_layers, sources, strict=True):
        for name, parameter in source.named_parameters():
            layer.get_parameter(name).copy_(parameter)
        attention = source.self_attn
        if getattr(attention, "q_norm", None) is None:
            layer.self_attn.q_norm.weight.fill_(sizes[attention.q_proj])
            layer.self_attn.k_norm.weight.fill_(sizes[attention.k_proj])
    model.norm.weight.copy_(target.model.norm.weight)
    model.hidden_norm.weight.copy_(sources[-1].input_layernorm.weight)
    width = model.spec.hidden
    model.fc.weight.normal_(std=0.02 * width**-0.5)
    model.fc.weight[:, -width:] += torch.eye(width)
