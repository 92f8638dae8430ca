"""Target families: one file per transformers `model_type`, saying what tracing replaces in that family's code."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import IncompatibleError

from ..registry import load, names

if TYPE_CHECKING:
    import torch
    from torch import nn

TEXT = "text_config"
"""key of config.json under which a multimodal checkpoint describes its text decoder"""
PLACEHOLDERS = "placeholder_token_ids"
"""our key of the decoder's configuration: tokens that stand for pictures or sounds and, where none is given, are
embedded as token 0"""


@dataclass(frozen=True)
class Norm:
    """An RMSNorm class: normed x times `offset + weight`, or normed x alone where the module has no weight."""

    cls: type[nn.Module]
    eps: str = "variance_epsilon"
    """the attribute that holds it"""
    offset: float = 0.0
    before: bool = False
    """it multiplies before it norms, which is not the same"""


def _causal_lm(config: Any, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def _nothing(_config: Any) -> Mapping[str, torch.Tensor]:
    return {}


@dataclass(frozen=True)
class Family:
    """The parts of a transformers modelling file that become semantic operators while tracing, and how to build its
    text decoder.
    """

    modeling: ModuleType
    """the module whose `apply_rotary_pos_emb` the attention layers call"""
    norms: tuple[Norm, ...]
    decoder: Callable[[Any], Any] | None = None
    """the configuration of the text decoder in that of a multimodal checkpoint, where it lies under `TEXT`; None where
    the checkpoint is one"""
    build: Callable[[Any, torch.dtype], Any] = _causal_lm
    """the decoder with its head, of its configuration and in a dtype; parameters are named as those of any causal
    language model"""
    stored: Mapping[str, str | None] = field(default_factory=dict)
    """prefixes of tensor names in the checkpoint and what they become in the decoder; None: no part of it"""
    omitted: tuple[str, ...] = ()
    """keys that published configurations leave out: there the defaults of the configuration's class are the family's
    own values"""
    experts_apart: bool = False
    """the checkpoint holds every expert's matrices as tensors of their own"""
    constants: Callable[[Any], Mapping[str, torch.Tensor]] = _nothing
    """values of buffers, beside rotary tables, that the decoder of a configuration computes when it is made, by the
    last part of their name"""

    @property
    def multimodal(self) -> bool:
        """Its checkpoints hold encoders of pictures or sounds beside the text decoder, whose features take the place of
        embedded tokens.
        """
        return self.decoder is not None


def text_decoder(config: Any) -> Any:
    """The text decoder's configuration in a multimodal one; what transformers reads at the top is declared there."""
    text = copy.deepcopy(config.text_config)
    text.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False))
    if getattr(config, "eos_token_id", None) is not None:
        text.eos_token_id = config.eos_token_id
    return text


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
