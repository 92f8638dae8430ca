"""The operators that the stateful form adds. Each converter has its own lowering of them."""

from __future__ import annotations

import torch
from torch.library import custom_op


@custom_op("dflash::cache_write", mutates_args=())
def cache_write(cache: torch.Tensor, rows: torch.Tensor, index: int, position: torch.Tensor) -> torch.Tensor:
    """`cache` [N, kv, L, hd] with `rows` [n, kv, S, hd] at `[index : index + n, :, position : position + S]`; position
    int32 [1].

    Rows and cache have one dtype. Raises `RuntimeError` where the rows do not fit.
    """
    start = int(position)
    written = cache.clone()
    written[index : index + rows.shape[0], :, start : start + rows.shape[2]] = rows
    return written


@cache_write.register_fake
def _(cache: torch.Tensor, rows: torch.Tensor, index: int, position: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(cache)


@custom_op("dflash::pointwise", mutates_args=())
def pointwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [1, S, C] times weight [O, C], as a convolution of width 1 over [1, C, 1, S] where the converter has one: [1,
    S, O].
    """
    return torch.nn.functional.linear(x, weight)


@pointwise.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
