"""Gemma 3, text: norms around each half of a layer that multiply by 1 + weight, scaled embeddings, a rotary base per
kind of layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.models.gemma3 import modeling_gemma3

from dflash_compile.runtime.errors import CheckpointError

from . import Family, Norm


def check(config: Any) -> None:
    """Raise `CheckpointError` for a Gemma 3 configuration that computes what no published model does."""
    for key, neutral in (("attn_logit_softcapping", None), ("use_bidirectional_attention", False)):
        if (value := getattr(config, key, neutral)) not in (neutral, False):
            raise CheckpointError(
                f"{key} = {value!r} is not supported",
                where=f"config.json: {key}",
                why="it changes the attention",
                fix="use a Gemma 3 model without it",
            )


def constants(config: Any) -> Mapping[str, torch.Tensor]:
    """The factor on every embedding row."""
    return {"embed_scale": torch.tensor(config.hidden_size**0.5)}


def _build(config: Any, dtype: torch.dtype) -> Any:
    check(config)
    return modeling_gemma3.Gemma3ForCausalLM._from_config(config, dtype=dtype)


FAMILY = Family(
    modeling=modeling_gemma3,
    norms=(Norm(modeling_gemma3.Gemma3RMSNorm, eps="eps", offset=1.0),),
    build=_build,
    constants=constants,
)
