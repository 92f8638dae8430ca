"""The weights of a stateful graph, read whole: the converters hold the model in memory in any case."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn
from torch.export import ExportedProgram

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from .lower import Stateful


def bound(
    stateful: Stateful, sources: Mapping[Owner, TensorSource], instead: Mapping[str, torch.Tensor] | None = None
) -> ExportedProgram:
    """The program with its weights in float32, those in `instead` from there, by the program's names.

    Raises `BuildError` for a tensor of another shape than the graph's or with numbers that are not finite.
    """
    program = copy.copy(stateful.program)
    values = dict(program.state_dict)
    given = instead or {}
    for name, ref in stateful.weights.items():
        tensor = (
            given[name]
            if name in given
            else _read(sources[ref.owner], ref.tensor, tuple(values[name].shape), ref.owner)
        )
        values[name] = nn.Parameter(tensor, requires_grad=False)
    for name in values.keys() - stateful.weights.keys():
        values[name] = nn.Parameter(
            torch.zeros(values[name].shape), requires_grad=False
        )  # read by no node, but the converters ask for it
    program._state_dict = values | dict(stateful.constants)
    return program


def _read(source: TensorSource, name: str, shape: tuple[int, ...], owner: Owner) -> torch.Tensor:
    stored = source.shapes().get(name)
    if stored != shape:
        raise BuildError(
            f"tensor {name!r} has shape {stored}, the graph needs {shape}" if stored else f"tensor {name!r} is missing",
            where=f"{owner} checkpoint",
            why="the config and the weights describe different models",
            fix="check that config.json belongs to these weights",
        )
    tensor = source.rows(name, 0, shape[0]).float()
    if not bool(tensor.isfinite().all()):
        raise BuildError(
            f"tensor {name!r} holds numbers that are not finite",
            where=f"{owner} checkpoint",
            why="the weights are damaged",
            fix="copy or download them again",
        )
    return tensor
