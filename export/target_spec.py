"""A `TargetSpec` from a transformers config and a text side: the same for every layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import CheckpointError

from .registry import names
from .spec import TargetSpec
from .text import check_tokenizer, end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from .checkpoint import TextSource

FAMILIES = f"{__package__}.families"


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


def target_spec(config: PreTrainedConfig, name: str, dtype: str, text: TextSource, pad: str | None, where: str) -> TargetSpec:
    """The spec of the model of `config`. `dtype` is the stored one; `pad` is the padding token, used where the config names none.

    Raises `CheckpointError` for a tokenizer of another model and for a rotary embedding with several bases.
    """
    tokenizer = check_tokenizer(text, config.vocab_size, where)
    theta = config.rope_parameters.get("rope_theta")
    if theta is None:
        raise CheckpointError(
            "the rotary embedding has no single base", where=where, why="rope_parameters holds no rope_theta", fix="use a target of a known family"
        )
    pad_id = config.pad_token_id if config.pad_token_id is not None else None if pad is None else tokenizer.token_to_id(pad)
    bos_id = config.bos_token_id
    if bos_id is None and text.bos_token is not None:
        bos_id = tokenizer.token_to_id(text.bos_token)
    return TargetSpec(
        family=config.model_type,
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
        bos_id=bos_id,
        pad_id=pad_id,
        eos_ids=end_ids(tokenizer, text, config.eos_token_id),
    )
