"""A traced graph: what tracing hands to lowering. Knows nothing of ONNX or of any back-end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from .signature import Signature

Owner = Literal["target", "drafter"]
OWNERS: tuple[Owner, ...] = ("target", "drafter")


@dataclass(frozen=True)
class WeightRef:
    """A tensor of one of the two checkpoints."""

    owner: Owner
    tensor: str
    exact: bool = False
    """never below float32, whatever the precision of the rest"""


@dataclass(frozen=True)
class Graph:
    """One traced program and where its values come from.

    Every parameter and buffer of `program` is named in exactly one of `weights` (read from a checkpoint when the graph
    is bound) and `constants` (known now, such as rotary tables).
    """

    signature: Signature
    program: torch.export.ExportedProgram
    weights: Mapping[str, WeightRef]
    constants: Mapping[str, torch.Tensor]
