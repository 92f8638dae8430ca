"""Target families: one file per transformers `model_type`, saying what tracing replaces in that family's code."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import IncompatibleError

from ..registry import load, names

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Family:
    """The parts of a transformers modelling file that become semantic operators while tracing."""

    modeling: ModuleType
    """the module whose `apply_rotary_pos_emb` the attention layers call"""
    norms: tuple[type[nn.Module], ...]
    """RMSNorm classes: `weight`, `variance_epsilon`, forward(x)"""


def family_of(model_type: str) -> Family:
    """The family file named `model_type`.

    Raises `IncompatibleError` when there is none.
    """
    if model_type not in names(__name__):
        raise IncompatibleError(
            f"target family {model_type!r} cannot be traced yet",
            where="config.json: model_type",
            why="tracing has to know which of the family's functions are the rotary embedding and the norms",
            fix=f"use a target of another family, or add export/families/{model_type}.py",
        )
    family: Family = load(__name__, model_type).FAMILY
    return family
