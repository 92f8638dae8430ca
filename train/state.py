"""Checkpoint of a running training: weights, optimiser moments and the clock, as safetensors (no pickle)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn


@dataclass
class Clock:
    """How far a run has come."""

    step: int = 0
    seconds: float = 0.0
    rows: int = 0
    """block rows trained on"""


def save_state(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, clock: Clock) -> None:
    """Write everything a resumed run needs; the old file stays until the new one is whole."""
    tensors = {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = torch.as_tensor(value).detach().clone().contiguous()
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"clock": json.dumps(asdict(clock))})
    partial.replace(path)


def load_state(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> Clock:
    """Restore `model` and `optimiser` in place."""
    with safe_open(path, framework="pt") as file:
        clock = Clock(**json.loads(file.metadata()["clock"]))
        names = set(file.keys())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(file.get_tensor(f"model.{name}"))
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in names]
                optimiser.state[parameter] = {key: file.get_tensor(f"{key}.{name}") for key in keys}
    return clock
