"""A `TargetSpec` from a transformers config and a text side: the same for every layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import CheckpointError

from ..registry import names
from ..spec import TargetSpec
from .files import section
from .text import NO_TOKEN, check_tokenizer, end_ids, token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from .checkpoint import TextSource

FAMILIES = "dflash_compile.export.families"
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)
_FIX = "take the configuration from the model's original repository"


def require_family(model_type: str, where: str) -> None:
    """Raise `CheckpointError` unless `export/families/` has a file named `model_type`."""
    known = names(FAMILIES)
    if model_type not in known:
        raise CheckpointError(
            f"target family {model_type!r} is not supported",
            where=where,
            why=f"known families: {', '.join(known)}",
            fix=f"use a target of a known family, or add export/families/{model_type}.py",
        )


def check_sizes(config: PreTrainedConfig, tensors: int, where: str) -> None:
    """Raise `CheckpointError` for sizes no model can have. `tensors` is how many the checkpoint holds.

    Asked before the model is built without its weights: a mistyped number of layers would fill the memory even so.
    """
    numbers = {key: getattr(config, key, None) for key in SIZES}
    wrong = [f"{key} = {value}" for key, value in numbers.items() if value is not None and value < 1]
    if wrong:
        raise CheckpointError(
            f"the configuration says {', '.join(wrong)}", where=where, why="sizes are whole numbers from 1 up", fix=_FIX
        )
    if config.num_hidden_layers > tensors:
        raise CheckpointError(
            f"the configuration says {config.num_hidden_layers} layers, the weights are {tensors} tensors",
            where=where,
            why="a layer has several tensors of its own",
            fix="check that config and weights are of the same model and revision, whole",
        )


def target_spec(
    family: str, config: PreTrainedConfig, name: str, dtype: str, text: TextSource, pad: str | None, where: str
) -> TargetSpec:
    """The spec of `family`'s model of `config`. `dtype` is the stored one; `pad` is the padding token, used where the
    config names none.

    Raises `CheckpointError` for a tokenizer of another model and for a rotary embedding with several bases.
    """
    sizes = target_sizes(family, config, name, dtype, where)
    tokenizer = check_tokenizer(text, config.vocab_size, where)
    pad_id = (
        config.pad_token_id if config.pad_token_id is not None else None if pad is None else tokenizer.token_to_id(pad)
    )
    bos_id = config.bos_token_id
    if bos_id is None and text.bos_token is not None:
        bos_id = tokenizer.token_to_id(text.bos_token)
    eos_ids = end_ids(tokenizer, text, config.eos_token_id)
    _check_tokens(
        {"beginning": (bos_id,), "end": (*eos_ids, *token_ids(config.eos_token_id))}, config.vocab_size, where
    )
    return replace(sizes, bos_id=bos_id, pad_id=pad_id, eos_ids=eos_ids)


def target_sizes(family: str, config: PreTrainedConfig, name: str, dtype: str, where: str) -> TargetSpec:
    """`target_spec` as far as the configuration alone says it, without the tokens of a text side.

    Raises `CheckpointError` for a rotary embedding with several bases and for numbers that cannot be.
    """
    theta = rope_base(config.rope_parameters)
    if theta is None:
        raise CheckpointError(
            "the rotary embedding has no single base",
            where=where,
            why="rope_parameters holds no rope_theta",
            fix="use a target of a known family",
        )
    _check_positive("rope_theta", theta, where)
    _check_positive("rms_norm_eps", config.rms_norm_eps, where)
    return TargetSpec(
        family=family,
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
        max_positions=config.max_position_embeddings,
        tied=bool(config.tie_word_embeddings),
        dtype=dtype,
        rms_eps=config.rms_norm_eps,
        rope_theta=float(theta),
        experts=getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 0,
        experts_used=getattr(config, "num_experts_per_tok", None) or 0,
    )


def rope_base(parameters: Mapping[str, Any]) -> Any:
    """The base in `rope_parameters`: the only one, or that of layers with full attention where kinds of layers have
    their own. None where there is none.
    """
    return parameters.get("rope_theta", section(parameters.get("full_attention")).get("rope_theta"))


def _check_positive(key: str, value: Any, where: str) -> None:
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise CheckpointError(
            f"the configuration says {key} = {value!r}", where=where, why="a finite number above 0 is needed", fix=_FIX
        )


def _check_tokens(ids: Mapping[str, Iterable[int | None]], vocab: int, where: str) -> None:
    for role, tokens in ids.items():
        for token in tokens:
            if token is not None and token != NO_TOKEN and not 0 <= token < vocab:
                raise CheckpointError(
                    f"the {role} token {token} is no token",
                    where=where,
                    why=f"ids end at {vocab - 1}",
                    fix="correct bos_token_id and eos_token_id in the configuration and in generation_config.json",
                )
