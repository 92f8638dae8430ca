"""The target as a runnable transformers model, for training and reference runs.

Building a bundle never needs this: tracing reads no weights.
"""

from __future__ import annotations

import copy

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .checkpoint import TargetCheckpoint


def load_model(checkpoint: TargetCheckpoint, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    """The transformers model of `checkpoint` with its weights in `dtype`, in eval mode.

    Holds one copy of the weights: the model is made on the meta device and each parameter is put in place as it is read.
    """
    # A model keeps the config it is made of and changes it, for one when its attention is replaced: that must not reach the checkpoint.
    config = copy.deepcopy(checkpoint.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    stored = checkpoint.tensors.shapes()
    weights = {name: checkpoint.read(name).to(device, dtype) for name, _ in model.named_parameters() if name in stored}
    model.load_state_dict(weights, assign=True, strict=False)
    model.tie_weights()
    _restore_buffers(model, device)
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def _restore_buffers(model: PreTrainedModel, device: str) -> None:
    """Computed buffers (rotary frequencies) come out of the meta device empty: build their modules again."""
    for name, module in list(model.named_modules()):
        if any(buffer.is_meta for buffer in module.buffers(recurse=False)):
            model.set_submodule(name, type(module)(module.config).to(device))
