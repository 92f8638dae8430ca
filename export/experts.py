"""Mixture of experts with static shapes: every expert runs on every row, and what the router did not choose counts nothing.

The dense form, which every back-end runs. It touches the weights of all experts, whatever the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch


def dense_experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What a transformers experts module computes of hidden [T, H], for the `chosen` experts [T, k] of each row and their `weights` [T, k]."""
    inner = module._apply_gate(_project(module, "gate_up_proj", hidden[None]))
    out = _project(module, "down_proj", inner)
    if module.has_post_expert_norm:
        out = module.post_expert_norm(out)
    share = torch.zeros(hidden.shape[0], module.num_experts, dtype=hidden.dtype).scatter(1, chosen, weights.to(hidden.dtype))
    summed: torch.Tensor = (out * share.T[:, :, None]).sum(0)
    return summed


def _project(module: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    """x [E or 1, T, in] by the matrices of each expert: [E, T, out]."""
    matrices = getattr(module, name)
    out: torch.Tensor = x @ (matrices if module.is_transposed else matrices.transpose(1, 2))
    return out + getattr(module, f"{name}_bias")[:, None] if module.has_bias else out
