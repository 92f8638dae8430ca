"""Mixture of experts with static shapes, in two forms.

Dense, which every back-end runs: every expert runs on every row, and what the router did not choose counts nothing.
Sparse, for back-ends with an operator for it: rows are repeated for each expert they chose, and pass that one alone.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import SiLUActivation

from ..ops.chosen_experts import chosen_experts


def dense_experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """What a transformers experts module computes of hidden [T, H], for the `chosen` experts [T, k] of each row and
    their `weights` [T, k].
    """
    inner = module._apply_gate(_project(module, "gate_up_proj", hidden[None]))
    out = _project(module, "down_proj", inner)
    if module.has_post_expert_norm:
        out = module.post_expert_norm(out)
    share = torch.zeros(hidden.shape[0], module.num_experts, dtype=hidden.dtype).scatter(
        1, chosen, weights.to(hidden.dtype)
    )
    summed: torch.Tensor = (out * share.T[:, :, None]).sum(0)
    return summed


def sparse_experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """As `dense_experts`, by the semantic operator; for modules that `has_sparse_form`."""
    rows, used = chosen.shape
    repeated = hidden[:, None].expand(-1, used, -1).reshape(-1, hidden.shape[1])
    biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
    alpha, beta, limit = _gate(module)
    out = chosen_experts(
        repeated,
        chosen.reshape(-1),
        module.gate_up_proj,
        module.down_proj,
        *biases,
        module.is_transposed,
        module.is_concatenated,
        alpha,
        beta,
        limit,
    )
    if module.has_post_expert_norm:
        out = module.post_expert_norm(out)
    summed: torch.Tensor = (out.reshape(rows, used, -1) * weights[..., None].to(out.dtype)).sum(1)
    return summed


def has_sparse_form(module: Any) -> bool:
    """Whether the operator computes what `module` does: a gated SiLU, or gpt-oss's clamped one."""
    clamped = hasattr(module, "alpha") and hasattr(module, "limit")
    gated = clamped or isinstance(getattr(module, "act_fn", None), torch.nn.SiLU | SiLUActivation)
    # Halves of a bias would have to be brought into the operator's order as those of the weights are, and no family has
    # any.
    return bool(gated and (clamped != module.is_concatenated) and not (module.has_bias and module.is_concatenated))


def _gate(module: Any) -> tuple[float, float, float]:
    """Alpha, beta and limit of the operator."""
    return (float(module.alpha), 1.0, float(module.limit)) if hasattr(module, "alpha") else (1.0, 0.0, 0.0)


def _project(module: Any, name: str, x: torch.Tensor) -> torch.Tensor:
    """x [E or 1, T, in] by the matrices of each expert: [E, T, out]."""
    matrices = getattr(module, name)
    out: torch.Tensor = x @ (matrices if module.is_transposed else matrices.transpose(1, 2))
    return out + getattr(module, f"{name}_bias")[:, None] if module.has_bias else out
