"""Parameters of a draft module, from its spec alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from ..spec import DrafterSpec
from .v2 import draft_module


def module_shapes(spec: DrafterSpec, taps_width: int, vocab: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of `spec`'s draft module; embedding and head are not among them.

    `taps_width` is the number of taps times the target's hidden width, `vocab` the target's.
    """
    with torch.device("meta"):
        module = draft_module(replace(spec, evidence={}), taps_width, vocab)
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}
