"""Core ML's form of the operators that coremltools does not know. Importing this registers them with its converter."""

from __future__ import annotations

from typing import Any

import numpy as np
from coremltools.converters.mil.frontend.torch.ops import _get_inputs
from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
from coremltools.converters.mil.mil import Builder as mb  # noqa: N813  (its name in every Core ML text)
from coremltools.converters.mil.mil import types

from .names import PART

WIDEST = 1 << 14
"""output channels of one convolution: the most that the Neural Engine takes"""
_LEAST = 2.0**-14
"""the smallest float16 with all its bits: a row smaller than that is divided by it instead of by its own maximum"""


@register_torch_op(torch_alias=["dflash::cache_write"], override=True)  # type: ignore[untyped-decorator]
def dflash_cache_write(context: Any, node: Any) -> None:
    """One `slice_update`, which Core ML runs in place when all that follows is an update of the state."""
    cache, rows, index, position = _get_inputs(context, node, expected=4)
    if rows.dtype != cache.dtype:
        rows = mb.cast(x=rows, dtype=types.builtin_to_string(cache.dtype))
    count, heads, length, width = rows.shape
    begin = mb.concat(values=[_ints(index.val, 0), position, _ints(0)], axis=0)
    last = mb.add(x=position, y=_ints(length))
    end = mb.concat(values=[_ints(index.val + count, heads), last, _ints(width)], axis=0)
    context.add(mb.slice_update(x=cache, update=rows, begin=begin, end=end, name=node.name))


def _ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


@register_torch_op(torch_alias=["dflash::rms_norm"], override=True)  # type: ignore[untyped-decorator]
def dflash_rms_norm(context: Any, node: Any) -> None:
    """RMSNorm whose squares cannot overflow float16: with m = max |x|, x / rms(x) = s / sqrt(mean(s²) + eps / m²) for s
    = x / m.

    coremltools' own form adds eps unscaled, which is another function where activations are small, and divides a row of
    zeros by zero.
    """
    x, weight, eps = _get_inputs(context, node, expected=3)
    largest = mb.maximum(x=mb.reduce_max(x=mb.abs(x=x), axes=[-1], keep_dims=True), y=np.float32(_LEAST))
    scaled = mb.real_div(x=x, y=largest)
    offset = mb.square(x=mb.real_div(x=np.float32(eps.val**0.5), y=largest))
    mean = mb.add(x=mb.reduce_mean(x=mb.square(x=scaled), axes=[-1], keep_dims=True), y=offset)
    normed = mb.real_div(x=scaled, y=mb.sqrt(x=mean))
    context.add(mb.mul(x=normed, y=weight, name=node.name))


@register_torch_op(torch_alias=["dflash::pointwise"], override=True)  # type: ignore[untyped-decorator]
def dflash_pointwise(context: Any, node: Any) -> None:
    """Convolutions of width 1 on [1, C, 1, S], the Neural Engine's own form of a product; weights of many rows, a
    head's, in several of them.
    """
    x, weight = _get_inputs(context, node, expected=2)
    _, rows, channels = x.shape
    # Reshaped, not expanded: the converter would make a convolution of one dimension out of that.
    image = mb.reshape(x=mb.transpose(x=x, perm=[0, 2, 1]), shape=[1, channels, 1, rows])
    kernel = weight.val[:, :, None, None]
    count = -(-kernel.shape[0] // WIDEST)
    parts = []
    for number in range(count):
        # Constants are found by name: by compression, and by the check of what was saved.
        part = mb.const(val=kernel[number * WIDEST : (number + 1) * WIDEST], name=f"{weight.name}{PART}{number}")
        parts.append(mb.conv(x=image, weight=part, pad_type="valid"))
    product = parts[0] if count == 1 else mb.concat(values=parts, axis=1)
    columns = mb.reshape(x=product, shape=[1, kernel.shape[0], rows])
    context.add(mb.transpose(x=columns, perm=[0, 2, 1], name=node.name))
