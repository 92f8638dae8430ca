"""Products, attention, reductions and compressed weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from .values import Fault

Tensor = torch.Tensor


def _axes(x: Tensor, axes: Tensor | None) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axes is None else tuple(int(axis) % x.ndim for axis in axes.reshape(-1))


def _reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def reduce(x: Tensor, axes: Tensor | None = None, keep_dims: Tensor | None = None) -> Tensor:
        return function(x, dim=_axes(x, axes), keepdim=keep_dims is not None and bool(keep_dims))

    return reduce


def _pick(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def pick(x: Tensor, axis: Tensor, keep_dims: Tensor, output_dtype: str | None = None) -> Tensor:
        return function(x, dim=int(axis), keepdim=bool(keep_dims))

    return pick


def _topk(
    x: Tensor,
    k: Tensor,
    axis: Tensor,
    ascending: Tensor,
    sort: Tensor | None = None,
    return_indices: Tensor | None = None,
    output_indices_dtype: str | None = None,
) -> tuple[Tensor, ...]:
    if not 1 <= int(k) <= x.shape[int(axis)]:
        raise Fault(f"takes the {int(k)} largest of {x.shape[int(axis)]}")
    values, indices = x.topk(int(k), dim=int(axis), largest=not bool(ascending))
    return (values,) if return_indices is not None and not bool(return_indices) else (values, indices)


def _matmul(x: Tensor, y: Tensor, transpose_x: Tensor | None = None, transpose_y: Tensor | None = None) -> Tensor:
    if transpose_x is not None and bool(transpose_x):
        x = x.transpose(-1, -2)
    if transpose_y is not None and bool(transpose_y):
        y = y.transpose(-1, -2)
    return (x.float() @ y.float()).to(x.dtype)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    # Sums in float32, as the engines' matrix units keep them; float16 of torch's CPU kernels is no closer and far
    # slower.
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool and not bool(attn_mask.any(-1).all()):
        raise Fault("has a row that may attend to nothing")
    # In float32 inside, as the fused kernels keep their sums.
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.float()
    return F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask).to(query.dtype)


def _conv(
    x: Tensor,
    weight: Tensor,
    strides: Tensor,
    pad_type: str,
    pad: Tensor,
    dilations: Tensor,
    groups: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    if x.ndim != 4 or pad_type not in ("valid", "custom") or bool(pad.any()):
        raise Fault("is a convolution with padding or of another rank than 4, which this evaluator does not know")
    return F.conv2d(
        x.float(),
        weight.float(),
        None if bias is None else bias.float(),
        stride=strides.tolist(),
        dilation=dilations.tolist(),
        groups=int(groups),
    ).to(x.dtype)


def _layer_norm(
    x: Tensor, axes: Tensor, gamma: Tensor | None = None, beta: Tensor | None = None, epsilon: Tensor | None = None
) -> Tensor:
    shape = [x.shape[axis] for axis in _axes(x, axes)]
    return F.layer_norm(x, shape, gamma, beta, float(epsilon) if epsilon is not None else 1e-5)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "reduce_max": _reduction(torch.amax),
    "reduce_min": _reduction(torch.amin),
    "reduce_mean": _reduction(torch.mean),
    "reduce_sum": _reduction(torch.sum),
    "reduce_sum_square": _reduction(lambda x, dim, keepdim: x.square().sum(dim, keepdim=keepdim)),
    "reduce_l2_norm": _reduction(lambda x, dim, keepdim: x.square().sum(dim, keepdim=keepdim).sqrt()),
    "reduce_argmax": _pick(torch.argmax),
    "reduce_argmin": _pick(torch.argmin),
    "topk": _topk,
    "cumsum": lambda x, axis, exclusive, reverse: x.cumsum(int(axis)),
    "softmax": lambda x, axis: x.softmax(int(axis)),
    "matmul": _matmul,
    "linear": _linear,
    "conv": _conv,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attention,
}
