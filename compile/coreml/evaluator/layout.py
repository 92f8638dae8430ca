"""Operations that move elements: shapes, slices, gathers, joins. Every index is checked against what it points into."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .values import Fault

Tensor = torch.Tensor


def _ints(value: Tensor | None) -> list[int]:
    return [] if value is None else [int(item) for item in value.reshape(-1)]


def _bools(value: Tensor | None, count: int) -> list[bool]:
    return [False] * count if value is None else [bool(item) for item in value.reshape(-1)]


def _reshape(x: Tensor, shape: Tensor) -> Tensor:
    sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(_ints(shape))]
    known = math.prod(size for size in sizes if size != -1)
    if (-1 not in sizes and known != x.numel()) or (-1 in sizes and x.numel() % known):
        raise Fault(f"reshapes {list(x.shape)} to {sizes}")
    return x.reshape(sizes)


def _slice_by_index(
    x: Tensor,
    begin: Tensor,
    end: Tensor,
    stride: Tensor | None = None,
    begin_mask: Tensor | None = None,
    end_mask: Tensor | None = None,
    squeeze_mask: Tensor | None = None,
) -> Tensor:
    index = _region(x.shape, begin, end, stride, begin_mask, end_mask)
    drop = _bools(squeeze_mask, x.ndim)
    return x[tuple(part.start if squeezed else part for part, squeezed in zip(index, drop, strict=True))]


def _region(
    shape: Sequence[int],
    begin: Tensor,
    end: Tensor,
    stride: Tensor | None,
    begin_mask: Tensor | None = None,
    end_mask: Tensor | None = None,
) -> list[slice]:
    """The slices named by an operation. Raises `Fault` for one that reaches outside."""
    steps = _ints(stride) or [1] * len(shape)
    open_begin, open_end = _bools(begin_mask, len(shape)), _bools(end_mask, len(shape))
    parts = []
    for axis, (size, first, last, step) in enumerate(zip(shape, _ints(begin), _ints(end), steps, strict=True)):
        if step < 1:
            raise Fault(f"has the stride {step} on axis {axis}, which this evaluator does not know")
        start = 0 if open_begin[axis] else first + size if first < 0 else first
        stop = size if open_end[axis] else last + size if last < 0 else last
        if not 0 <= start <= stop <= size:
            raise Fault(f"takes {start} to {stop} of an axis of {size}")
        parts.append(slice(start, stop, step))
    return parts


def _slice_update(
    x: Tensor,
    update: Tensor,
    begin: Tensor,
    end: Tensor,
    stride: Tensor | None = None,
    begin_mask: Tensor | None = None,
    end_mask: Tensor | None = None,
    squeeze_mask: Tensor | None = None,
) -> Tensor:
    if any(_bools(squeeze_mask, x.ndim)):
        raise Fault("squeezes what it updates, which this evaluator does not know")
    index = tuple(_region(x.shape, begin, end, stride, begin_mask, end_mask))
    if x[index].shape != update.shape:
        raise Fault(f"puts {list(update.shape)} where there is {list(x[index].shape)}")
    written = x.clone()
    written[index] = update
    return written


def _slice_by_size(x: Tensor, begin: Tensor, size: Tensor) -> Tensor:
    ends = [
        x.shape[axis] if count == -1 else start + count
        for axis, (start, count) in enumerate(zip(_ints(begin), _ints(size), strict=True))
    ]
    return x[tuple(_region(x.shape, begin, torch.tensor(ends), None))]


def _checked(indices: Tensor, size: int) -> Tensor:
    if indices.numel() and not (-size <= int(indices.min()) and int(indices.max()) < size):
        raise Fault(f"looks up {int(indices.min())} to {int(indices.max())} on an axis of {size}")
    return torch.where(indices < 0, indices + size, indices)


def _gather(
    x: Tensor, indices: Tensor, axis: Tensor, batch_dims: Tensor | None = None, validate_indices: Tensor | None = None
) -> Tensor:
    if batch_dims is not None and int(batch_dims):
        raise Fault("gathers in batches, which this evaluator does not know")
    at = int(axis) % x.ndim
    found = x.index_select(at, _checked(indices, x.shape[at]).reshape(-1))
    return found.reshape(*x.shape[:at], *indices.shape, *x.shape[at + 1 :])


def _gather_along_axis(x: Tensor, indices: Tensor, axis: Tensor, validate_indices: Tensor | None = None) -> Tensor:
    at = int(axis) % x.ndim
    return x.gather(at, _checked(indices, x.shape[at]))


def _scatter_along_axis(
    data: Tensor, indices: Tensor, updates: Tensor, axis: Tensor, mode: str, validate_indices: Tensor | None = None
) -> Tensor:
    if mode != "update":
        raise Fault(f"scatters in the mode {mode}, which this evaluator does not know")
    at = int(axis) % data.ndim
    return data.scatter(at, _checked(indices, data.shape[at]), updates)


def _pad(x: Tensor, pad: Tensor, mode: str = "constant", constant_val: Tensor | None = None) -> Tensor:
    if mode != "constant":
        raise Fault(f"pads in the mode {mode}, which this evaluator does not know")
    sides = _ints(pad)
    pairs = [sides[at : at + 2] for at in range(0, len(sides), 2)]
    if min(sides) < 0 or len(pairs) > x.ndim:
        raise Fault(f"pads {list(x.shape)} by {sides}")
    # Core ML counts the padded axes from the first of them, torch from the last.
    value = 0 if constant_val is None else constant_val.item()
    return torch.nn.functional.pad(x, [side for pair in reversed(pairs) for side in pair], value=value)


def _split(
    x: Tensor, axis: Tensor, num_splits: Tensor | None = None, split_sizes: Tensor | None = None
) -> tuple[Tensor, ...]:
    at = int(axis) % x.ndim
    if split_sizes is None:
        return x.chunk(int(num_splits), dim=at)  # type: ignore[arg-type]
    if sum(_ints(split_sizes)) != x.shape[at]:
        raise Fault(f"splits {x.shape[at]} into {_ints(split_sizes)}")
    parts: tuple[Tensor, ...] = x.split(_ints(split_sizes), dim=at)
    return parts


def _concat(values: Sequence[Tensor], axis: Tensor, interleave: Tensor | None = None) -> Tensor:
    if interleave is not None and bool(interleave):
        raise Fault("interleaves, which this evaluator does not know")
    return torch.cat(list(values), dim=int(axis))


def _expand_dims(x: Tensor, axes: Tensor) -> Tensor:
    for axis in sorted(item % (x.ndim + axes.numel()) for item in _ints(axes)):
        x = x.unsqueeze(axis)
    return x


def _squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    at = tuple(item % x.ndim for item in _ints(axes)) or tuple(axis for axis, size in enumerate(x.shape) if size == 1)
    if any(x.shape[axis] != 1 for axis in at):
        raise Fault(f"squeezes the axes {list(at)} of {list(x.shape)}")
    return x.squeeze(at)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "reshape": _reshape,
    "transpose": lambda x, perm: x.permute(_ints(perm)),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat": _concat,
    "stack": lambda values, axis: torch.stack(list(values), dim=int(axis)),
    "pad": _pad,
    "split": _split,
    "slice_by_index": _slice_by_index,
    "slice_by_size": _slice_by_size,
    "slice_update": _slice_update,
    "tile": lambda x, reps: x.repeat(_ints(reps)),
    "gather": _gather,
    "gather_along_axis": _gather_along_axis,
    "scatter_along_axis": _scatter_along_axis,
    "shape": lambda x: torch.tensor(x.shape),
    "fill": lambda shape, value: torch.full(_ints(shape), value.item(), dtype=value.dtype),
    "fill_like": lambda ref_tensor, value: torch.full(tuple(ref_tensor.shape), value.item(), dtype=value.dtype),
    "range_1d": lambda start, end, step: torch.arange(start.item(), end.item(), step.item()),
}
