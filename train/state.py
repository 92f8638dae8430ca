"""Checkpoint of a running training: weights, optimiser moments and the clock, as safetensors (no pickle)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from dflash_compile.runtime.errors import UsageError


@dataclass
class Clock:
    """How far a run has come."""

    step: int = 0
    seconds: float = 0.0
    rows: int = 0
    """block rows trained on"""


def save_state(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, clock: Clock, start: str) -> None:
    """Write everything a resumed run needs; the old file stays until the new one is whole.

    `start` names the first weights and what is trained.
    """
    tensors = {f"model.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{key}.{name}"] = torch.as_tensor(value).detach().clone().contiguous()
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"clock": json.dumps(asdict(clock)), "start": start})
    partial.replace(path)


def load_state(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, start: str) -> Clock:
    """Restore `model` and `optimiser` in place, on the model's device.

    Raises `UsageError` for the state of a drafter of another shape or another `start`, and for a file that cannot be
    read.
    """
    try:
        opened: Any = safe_open(path, framework="pt")
        metadata = opened.metadata()
        clock = Clock(**json.loads(metadata["clock"]))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the training state is damaged",
            where=str(path),
            why=str(error),
            fix="delete it: training starts over, the features stay",
        ) from error
    if (found := metadata.get("start", start)) != start:
        raise UsageError(
            "the training state is that of another run",
            where=str(path),
            why=f"it trains {found}; this run asks for {start}",
            fix="give the options of the first run, another --work folder, or --restart",
        )
    with opened as file:
        for name, parameter in model.named_parameters():
            key, shape = f"model.{name}", tuple(parameter.shape)
            if key not in file.keys() or tuple(file.get_slice(key).get_shape()) != shape:  # noqa: SIM118
                raise UsageError(
                    "the training state is that of another drafter",
                    where=f"{path}: {name}",
                    why="layers or widths differ from this run's options",
                    fix="give the options of the first run, or another --work folder",
                )
        names = set(file.keys())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(file.get_tensor(f"model.{name}"))
                keys = [key for key in ("step", "exp_avg", "exp_avg_sq") if f"{key}.{name}" in names]
                moments = {key: file.get_tensor(f"{key}.{name}") for key in keys}
                optimiser.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in moments.items()
                }
    return clock
