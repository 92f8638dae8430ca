"""The target as a runnable transformers model, for training and reference runs.

No build needs this: tracing reads no weights, and calibration a layer at a time (`layerwise.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedModel

from ..families import family_of
from .checkpoint import TargetCheckpoint


def load_model(
    checkpoint: TargetCheckpoint, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PreTrainedModel:
    """The transformers model of `checkpoint` with its weights in `dtype`, in eval mode.

    Holds one copy of the weights: the model is made on the meta device and each parameter is put in place as it is
    read.
    """
    # A model keeps the config it is made of and changes it, for one when its attention is replaced: that must not reach
    # the checkpoint.
    config, family = copy.deepcopy(checkpoint.config), family_of(checkpoint.spec.family)
    with torch.device("meta"):
        model = family.build(config, dtype)
    stored = checkpoint.tensors.shapes()
    weights = {name: checkpoint.read(name).to(device, dtype) for name in model.state_dict() if name in stored}
    model.load_state_dict(weights, assign=True, strict=False)
    model.tie_weights()
    restore_buffers(model, family.constants(config), device)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def restore_buffers(model: nn.Module, constants: Mapping[str, torch.Tensor], device: str) -> None:
    """Computed buffers come out of the meta device empty: take those there are in `constants`, build the modules of the
    others (rotary) again.
    """
    for name, module in list(model.named_modules()):
        for buffer in constants.keys() & dict(module.named_buffers(recurse=False)).keys():
            setattr(module, buffer, constants[buffer].to(device))
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(module.config).to(device))
