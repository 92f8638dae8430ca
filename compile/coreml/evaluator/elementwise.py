"""Operations on every element by itself, and on two tensors element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from .values import Fault, cast

Operation = Callable[..., Any]


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Operation:
    return lambda x: function(x)


def _binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Operation:
    return lambda x, y: function(x, y)


def _with_epsilon(function: Callable[[torch.Tensor], torch.Tensor]) -> Operation:
    return lambda x, epsilon: function(x + epsilon.to(x.dtype))


def _floor_div(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point() and bool((y == 0).any()):
        raise Fault("divides an integer by zero")
    return torch.div(x, y, rounding_mode="floor")


def _gelu(x: torch.Tensor, mode: str = "EXACT") -> torch.Tensor:
    if mode == "SIGMOID_APPROXIMATION":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if mode == "TANH_APPROXIMATION" else "none")


OPERATIONS: dict[str, Operation] = {
    "abs": _unary(torch.abs),
    "ceil": _unary(torch.ceil),
    "cos": _unary(torch.cos),
    "erf": _unary(torch.erf),
    "exp": _unary(torch.exp),
    "exp2": _unary(torch.exp2),
    "floor": _unary(torch.floor),
    "identity": _unary(lambda x: x),
    "inverse": _with_epsilon(torch.reciprocal),
    "log": _with_epsilon(torch.log),
    "logical_not": _unary(torch.logical_not),
    "relu": _unary(torch.relu),
    "round": _unary(torch.round),
    "rsqrt": _with_epsilon(torch.rsqrt),
    "sigmoid": _unary(torch.sigmoid),
    "sign": _unary(torch.sign),
    "silu": _unary(F.silu),
    "sin": _unary(torch.sin),
    "sqrt": _unary(torch.sqrt),
    "square": _unary(torch.square),
    "tanh": _unary(torch.tanh),
    "gelu": _gelu,
    "clip": lambda x, alpha, beta: x.clamp(float(alpha), float(beta)),
    "cast": lambda x, dtype: cast(x, dtype),
    "add": _binary(torch.add),
    "sub": _binary(torch.sub),
    "mul": _binary(torch.mul),
    "real_div": _binary(torch.div),
    "floor_div": _floor_div,
    "mod": _binary(torch.remainder),
    "pow": _binary(torch.pow),
    "maximum": _binary(torch.maximum),
    "minimum": _binary(torch.minimum),
    "equal": _binary(torch.eq),
    "not_equal": _binary(torch.ne),
    "less": _binary(torch.lt),
    "less_equal": _binary(torch.le),
    "greater": _binary(torch.gt),
    "greater_equal": _binary(torch.ge),
    "logical_and": _binary(torch.logical_and),
    "logical_or": _binary(torch.logical_or),
    "logical_xor": _binary(torch.logical_xor),
    "select": lambda cond, a, b: torch.where(cond, a, b),
}
