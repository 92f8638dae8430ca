"""Values of a running program: torch tensors that are checked against the type their operation declares.

Integers of every width are int64 here, so that one too large for its declared type shows instead of wrapping around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_FLOATS = {"fp16": torch.float16, "fp32": torch.float32}
_RANGES = {
    "int8": (-(2**7), 2**7),
    "uint8": (0, 2**8),
    "int16": (-(2**15), 2**15),
    "uint16": (0, 2**16),
    "int32": (-(2**31), 2**31),
    "uint32": (0, 2**32),
}
_RANGES |= {
    f"{sign}int{bits}": (0, 2**bits) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    for sign in ("", "u")
    for bits in (1, 2, 3, 4, 6)
}


class Fault(Exception):
    """What an operation did that no engine may do."""


def type_name(dtype: Any) -> str:
    """`dtype` of coremltools as a word: fp16, int32, bool, …"""
    from coremltools.converters.mil.mil import types

    return str(types.builtin_to_string(dtype))


def tensor(value: Any, name: str) -> torch.Tensor:
    """A constant or an input of the declared type `name` as a tensor."""
    array = np.asarray(value)
    if name in _FLOATS:
        return torch.from_numpy(np.array(array, np.float32)).to(_FLOATS[name])
    return torch.from_numpy(np.array(array, bool if name == "bool" else np.int64))


def cast(value: torch.Tensor, name: str) -> torch.Tensor:
    """`value` as the type `name`. Raises `Fault` for an integer that does not fit."""
    if name in _FLOATS:
        return value.to(_FLOATS[name])
    if name == "bool":
        return value != 0
    whole = value.to(torch.int64)
    check_range(whole, name)
    return whole


def check_range(value: torch.Tensor, name: str) -> None:
    """Raises `Fault` where an integer is outside the type `name`."""
    low, high = _RANGES[name]
    if value.numel() and not (low <= int(value.min()) and int(value.max()) < high):
        raise Fault(f"gives {int(value.min())} to {int(value.max())}, which do not fit {name}")


def widened(value: Any, wide: bool) -> Any:
    """A tensor of float16 in float32 where that is wanted; everything else as it is."""
    return value.float() if wide and isinstance(value, torch.Tensor) and value.dtype == torch.float16 else value


def check(value: torch.Tensor, var: Any, wide: bool = False) -> None:
    """Raises `Fault` where `value` is not of the shape and type that `var` declares, or of float32 where it declares
    float16 and is `wide`.
    """
    name = type_name(var.dtype)
    shape = tuple(var.shape)
    if tuple(value.shape) != shape:
        raise Fault(f"gives the shape {list(value.shape)}, and declares {list(shape)}")
    wanted = _FLOATS.get(name, torch.bool if name == "bool" else torch.int64)
    if wide and wanted == torch.float16:
        wanted = torch.float32
    if value.dtype != wanted:
        raise Fault(f"gives {value.dtype}, and declares {name}")
    if wanted == torch.int64:
        check_range(value, name)
