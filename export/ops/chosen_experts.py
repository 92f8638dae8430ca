"""The semantic operator of chosen experts, for back-ends that have one: only the weights of experts that some row chose
are read.
"""

from __future__ import annotations

import torch
from torch.library import custom_op


@custom_op("dflash::chosen_experts", mutates_args=())
def chosen_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    transposed: bool,
    concatenated: bool,
    alpha: float,
    beta: float,
    limit: float,
) -> torch.Tensor:
    """Rows x [N, H], each through the one expert that `chosen` int64 [N] names: [N, H].

    `gate_up` [E, 2 I, H] and `down` [E, H, I], or `transposed`: [E, H, 2 I] and [E, I, H]; rows of gate and up in two
    halves (`concatenated`) or by turns. The result is down((up + beta) * gate * sigmoid(alpha * gate)), gate at most
    and up within ± `limit` (0: no limit).
    """
    gate_up, down = (weight if transposed else weight.transpose(1, 2) for weight in (gate_up, down))
    both = torch.bmm(x[:, None], gate_up[chosen])[:, 0]
    if gate_up_bias is not None:
        both = both + gate_up_bias[chosen]
    gate, up = both.chunk(2, -1) if concatenated else (both[..., ::2], both[..., 1::2])
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    out = torch.bmm(((up + beta) * gate * torch.sigmoid(alpha * gate))[:, None], down[chosen])[:, 0]
    return out if down_bias is None else out + down_bias[chosen]


@chosen_experts.register_fake
def _(x: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.empty_like(x)
