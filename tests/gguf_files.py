"""Tiny GGUF files written from a transformers directory or a drafter's, the way llama.cpp's converter lays them out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter, LlamaFileType, TokenType, get_tensor_name_map
from gguf.constants import MODEL_ARCH
from gguf.quants import quantize
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from dflash_compile.export.drafters.gguf import IN_LAYER

ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen3": MODEL_ARCH.QWEN3}


def write_gguf(
    path: Path,
    target_dir: Path,
    kind: Kind = Kind.F32,
    *,
    pre: str = "gpt-2",
    extra: Mapping[str, Any] | None = None,
    skip: tuple[str, ...] = (),
    tokenizer_model: str = "gpt2",
    vectors: Kind = Kind.F32,
) -> Path:
    """`target_dir` as one GGUF file, matrices stored as `kind`, norms and biases as `vectors`.

    `extra` adds metadata (int, float, str or bool) after the usual keys, replacing any of them; `skip` leaves keys or
    tensors out.
    """
    config = AutoConfig.from_pretrained(target_dir)
    values = {key: value for key, value in (_metadata(config) | dict(extra or {})).items() if key not in skip}
    writer = GGUFWriter(path, config.model_type)
    writer.add_file_type(LlamaFileType.ALL_F32 if kind == Kind.F32 else LlamaFileType.MOSTLY_Q8_0)
    for key, value in values.items():
        _add(writer, key, value)
    _add_tokenizer(writer, target_dir, pre, tokenizer_model, skip)
    _add_tensors(writer, target_dir, config, {1: vectors, 2: kind}, skip)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: Any) -> dict[str, Any]:
    own = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
    }
    tokens = {"bos": config.bos_token_id, "eos": config.eos_token_id, "padding": config.pad_token_id}
    return {f"{config.model_type}.{key}": value for key, value in own.items()} | {
        f"tokenizer.ggml.{role}_token_id": value for role, value in tokens.items()
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    add: dict[type, Callable[..., None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _add_tokenizer(writer: GGUFWriter, target_dir: Path, pre: str, model: str, skip: tuple[str, ...]) -> None:
    data = json.loads((target_dir / "tokenizer.json").read_text())
    special = {entry["content"] for entry in data["added_tokens"]}
    tokens = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    writer.add_tokenizer_model(model)
    if "tokenizer.ggml.pre" not in skip:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    writer.add_chat_template((target_dir / "chat_template.jinja").read_text())


def _add_tensors(
    writer: GGUFWriter, target_dir: Path, config: Any, kinds: Mapping[int, Kind], skip: tuple[str, ...]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(target_dir)
    table = get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        place = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if place in skip or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        array = weight.float().numpy()
        part = name.split(".")[-2]
        if config.model_type == "llama" and part in heads:
            array = array.reshape(heads[part], 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        kind = kinds[array.ndim]
        if kind == Kind.F32:
            writer.add_tensor(place, np.ascontiguousarray(array))
        else:
            writer.add_tensor(place, quantize(np.ascontiguousarray(array), kind), raw_dtype=kind)


def write_gguf_drafter(
    path: Path, drafter: Path, kind: Kind = Kind.F32, arch: str = "dflash", extra: Mapping[str, Any] | None = None
) -> Path:
    """A z-lab drafter as llama.cpp's converter writes it: taps counted by what enters a layer."""
    config = json.loads((drafter / "config.json").read_text())
    names = {
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "block_size": "block_size",
    }
    names |= {
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "context_length": "max_position_embeddings",
    }
    values: dict[str, Any] = {key: config[name] for key, name in names.items()}
    values |= {
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    values |= {"target_layers": [tap + 1 for tap in config["dflash_config"]["target_layer_ids"]], **(extra or {})}
    writer = GGUFWriter(path, arch)
    writer.add_file_type(LlamaFileType.ALL_F32)
    add: dict[type, Callable[..., None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in values.items():
        if value is not None:
            add[type(value)](f"{arch}.{key}", value)
    writer.add_uint32("tokenizer.ggml.mask_token_id", config["dflash_config"]["mask_token_id"])
    for name, weight in load_file(drafter / "model.safetensors").items():
        stored = {
            "fc.weight": name,
            "hidden_norm.weight": "enc.output_norm.weight",
            "norm.weight": "output_norm.weight",
        }.get(name)
        if stored is None:
            _, layer, part = name.split(".", 2)
            stored = f"blk.{layer}.{IN_LAYER[part.removesuffix('.weight')][0]}.weight"
        array = np.ascontiguousarray(weight.numpy())
        if array.ndim == 1 or kind == Kind.F32:
            writer.add_tensor(stored, array)
        else:
            writer.add_tensor(stored, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
