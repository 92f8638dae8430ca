"""A transformers config from GGUF metadata. A key that is not understood is an error: it may change the arithmetic."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig

from ..registry import load, names
from .reading import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ARCHITECTURES = f"{__package__}.architectures"
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
}
SPECIAL = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
UNDERSTOOD = {
    *SIZES,
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "vocab_size",
}
SCALINGS = ("linear", "yarn")


def read_config(file: GgufFile) -> tuple[ModuleType, PreTrainedConfig]:
    """The architecture file and the config of the model in `file`.

    Raises `CheckpointError` for an unknown architecture, a missing key, and any key of the architecture not listed
    above.
    """
    name = str(file.require("general.architecture"))
    known = names(ARCHITECTURES)
    if name not in known:
        raise file.fault(
            "general.architecture",
            f"GGUF architecture {name!r} is not supported",
            f"known: {', '.join(known)}",
            f"add export/gguf_format/architectures/{name}.py",
        )
    architecture = load(ARCHITECTURES, name)
    _check_keys(file, name)
    return architecture, AutoConfig.for_model(architecture.MODEL_TYPE, **_fields(file, name))


def _check_keys(file: GgufFile, name: str) -> None:
    own = [key.removeprefix(f"{name}.") for key in file.metadata if key.startswith(f"{name}.")]
    strange = sorted(set(own) - UNDERSTOOD)
    if strange:
        raise file.fault(
            f"{name}.{strange[0]}",
            f"metadata not understood: {', '.join(strange)}",
            "it may change the arithmetic, and ignoring it would give wrong text",
        )
    several = [key for key in own if isinstance(file.metadata[f"{name}.{key}"], list)]
    if several:
        raise file.fault(
            f"{name}.{several[0]}",
            f"{several[0]} differs from layer to layer",
            "all layers of a supported family have the same shape",
        )


def _fields(file: GgufFile, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {field: file.size(f"{name}.{key}") for key, field in SIZES.items()}
    fields["num_key_value_heads"] = file.size(f"{name}.attention.head_count_kv", fields["num_attention_heads"])
    fields["head_dim"] = _head_dim(file, name, fields["hidden_size"] // fields["num_attention_heads"])
    fields["vocab_size"] = _vocab(file, name)
    fields["rms_norm_eps"] = file.decimal(f"{name}.attention.layer_norm_rms_epsilon")
    fields["rope_parameters"] = read_rope(file, name)
    fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    fields["tie_word_embeddings"] = "output.weight" not in file.tensors
    fields |= {field: file.metadata.get(f"tokenizer.ggml.{key}") for field, key in SPECIAL.items()}
    return fields


def _head_dim(file: GgufFile, name: str, plain: int) -> int:
    size = file.size(f"{name}.attention.key_length", plain)
    for key in ("attention.value_length", "rope.dimension_count"):
        if file.size(f"{name}.{key}", size) != size:
            raise file.fault(
                f"{name}.{key}",
                f"{key} is not the width of a key head, {size}",
                "no supported family has heads of several widths or rotates only a part of them",
            )
    return size


def _vocab(file: GgufFile, name: str) -> int:
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise file.fault(
            "token_embd.weight",
            "there is no embedding",
            "the file holds no whole model",
            "copy or download the file again",
        )
    rows = int(table.shape[1])
    if file.size(f"{name}.vocab_size", rows) != rows:
        raise file.fault(
            f"{name}.vocab_size",
            "vocab_size is not the number of embedding rows",
            f"the embedding has {rows}",
            "convert the model again",
        )
    return rows


def read_rope(file: GgufFile, name: str) -> dict[str, Any]:
    """`rope_parameters` of the architecture `name`.

    Raises `CheckpointError` for frequencies stored as a tensor and for an unknown scaling.
    """
    if "rope_freqs.weight" in file.tensors:
        raise file.fault(
            "rope_freqs.weight",
            "the file stores RoPE frequencies as a tensor",
            "the rule that made them (Llama 3.1 scaling) is not in the metadata, and is not guessed",
        )
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": file.decimal(f"{name}.rope.freq_base")}
    kind = file.metadata.get(f"{name}.rope.scaling.type", "none")
    if kind == "none":
        return rope
    if kind not in SCALINGS:
        raise file.fault(
            f"{name}.rope.scaling.type",
            f"RoPE scaling {kind!r} is not supported",
            f"known: none, {', '.join(SCALINGS)}",
        )
    rope |= {"rope_type": kind, "factor": file.decimal(f"{name}.rope.scaling.factor")}
    if kind == "yarn":
        rope["original_max_position_embeddings"] = file.size(f"{name}.rope.scaling.original_context_length")
    return rope
