"""Tiny random checkpoints on disk: targets of any family with a real byte-level tokenizer, and drafters that fit them.

Written with transformers and safetensors alone, so that tests of our own readers and writers do not test themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators_config import speculators_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedConfig
from transformers.utils import logging

logging.disable_progress_bar()

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
ENDOFTEXT, IM_START, IM_END, MASK = range(4)
VOCAB = 384

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog while the other dogs sleep in the warm sun",
    "one block of tokens is drafted, then verified, and the accepted prefix is committed",
    "def add(left, right):\n    return left + right\n\nprint(add(2, 3))\n",
    "it's what they're saying: we'll see 12 birds, 345 trees and 2026 stars",
)


def write_tokenizer(folder: Path, vocab: int = VOCAB) -> None:
    """A byte-level BPE `tokenizer.json` of at most `vocab` tokens, with its special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    words = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[IM_START],
        "eos_token": SPECIAL[IM_END],
        "pad_token": SPECIAL[ENDOFTEXT],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
VISION: dict[str, dict[str, Any]] = {
    "muse_glimmer": {
        "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4, **_TOWER},
        "out_hidden_size": 64,
        "projector_hidden_size": 16,
        "image_token_id": VOCAB - 1,
        "video_token_id": VOCAB - 2,
    },
    "muse_spark": {
        "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4, **_TOWER},
        "audio_config": {
            "patch_sizes": [4, 4],
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_hidden_layers": 2,
            "out_hidden_size": 64,
        },
        "out_hidden_size": 64,
        "projector_hidden_size": 16,
        "image_token_id": VOCAB - 1,
        "video_token_id": VOCAB - 2,
        "audio_token_id": VOCAB - 3,
    },
    "gemma3": {
        "vision_config": {"image_size": 28, "patch_size": 14, **_TOWER},
        "mm_tokens_per_image": 4,
        "image_token_index": VOCAB - 1,
    },
}
"""families of multimodal checkpoints, and the rest of their configuration beside the text's"""


def target_config(family: str = "llama", **overrides: Any) -> PreTrainedConfig:
    """4 layers, 64 wide, 4 query and 2 key/value heads of 16.

    `overrides` are config fields, of the text decoder where there is more.
    """
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "initializer_range": 0.1,  # the default 0.02 leaves a random model's logits all but equal
        "tie_word_embeddings": family == "qwen3",
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
        "pad_token_id": ENDOFTEXT,
    }
    if family in VISION:
        return AutoConfig.for_model(family, text_config=fields | overrides, **VISION[family])
    return AutoConfig.for_model(family, **(fields | overrides))


def _vary(model: torch.nn.Module) -> None:
    """Norms away from 1 and biases and the padding row away from 0, so that leaving one of them out shows."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.1 * torch.randn_like(weight)
        model.get_input_embeddings().weight[ENDOFTEXT].normal_(std=0.1)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer += 0.3 * torch.randn_like(buffer)


def write_target(
    folder: Path, family: str = "llama", *, seed: int = 0, shard_size: str = "1GB", **overrides: Any
) -> Path:
    """A random target as a transformers directory.

    `overrides` are config fields; a small `shard_size` ("100KB") shards it.
    """
    torch.manual_seed(seed)
    config = target_config(family, **overrides)
    kind = AutoModelForImageTextToText if family in VISION else AutoModelForCausalLM
    model = kind.from_config(config, dtype=config.dtype or torch.float32)
    _vary(model)
    model.generation_config.eos_token_id = [IM_END, ENDOFTEXT]
    model.save_pretrained(folder, max_shard_size=shard_size)
    write_tokenizer(folder, min(VOCAB, config.get_text_config().vocab_size))
    return folder


def drafter_config(
    target_dir: Path, *, layers: int, block: int, taps: tuple[int, ...], mask_id: int, **overrides: Any
) -> dict[str, Any]:
    """The `config.json` of a z-lab v1 drafter for the target in `target_dir`."""
    target = AutoConfig.from_pretrained(target_dir)
    fields: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": block,
        "num_target_layers": target.num_hidden_layers,
        "dflash_config": {"mask_token_id": mask_id, "target_layer_ids": list(taps)},
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "hidden_act": "silu",
        "attention_bias": False,
        "rope_theta": target.rope_parameters["rope_theta"],
        "rms_norm_eps": 1e-6,
        "dtype": "float32",
    }
    shared = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )
    return fields | {name: getattr(target, name) for name in shared} | overrides


def drafter_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights for `config`, scaled so that activations neither vanish nor explode."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    taps = len(config["dflash_config"]["target_layer_ids"])

    def matrix(out: int, width: int) -> torch.Tensor:
        return torch.randn(out, width, generator=generator) * width**-0.5

    def norm(width: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(width, generator=generator)

    tensors = {
        "fc.weight": matrix(hidden, taps * hidden),
        "hidden_norm.weight": norm(hidden),
        "norm.weight": norm(hidden),
    }
    for index in range(config["num_hidden_layers"]):
        layer = {
            "input_layernorm": norm(hidden),
            "self_attn.q_proj": matrix(q, hidden),
            "self_attn.k_proj": matrix(kv, hidden),
            "self_attn.v_proj": matrix(kv, hidden),
            "self_attn.o_proj": matrix(hidden, q),
            "self_attn.q_norm": norm(head),
            "self_attn.k_norm": norm(head),
            "post_attention_layernorm": norm(hidden),
            "mlp.gate_proj": matrix(inner, hidden),
            "mlp.up_proj": matrix(inner, hidden),
            "mlp.down_proj": matrix(hidden, inner),
        }
        tensors |= {f"layers.{index}.{name}.weight": value for name, value in layer.items()}
        if config.get("attention_bias"):
            widths = {"q": q, "k": kv, "v": kv, "o": hidden}
            tensors |= {
                f"layers.{index}.self_attn.{name}_proj.bias": 0.1 * torch.randn(width, generator=generator)
                for name, width in widths.items()
            }
    return tensors


def write_drafter(
    folder: Path,
    target_dir: Path,
    *,
    layers: int = 2,
    block: int = 8,
    taps: tuple[int, ...] = (0, 1),
    mask_id: int = MASK,
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A random z-lab v1 drafter for the target in `target_dir`.

    `overrides` are config fields; the weights follow them.
    """
    config = drafter_config(target_dir, layers=layers, block=block, taps=taps, mask_id=mask_id, **overrides)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(drafter_tensors(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_deepspec(folder: Path, target_dir: Path, **overrides: Any) -> Path:
    """A random DeepSpec drafter without a Markov head, of a block of 7, for the target in `target_dir`: an embedding
    and a head of its own.
    """
    fields = {"architectures": ["Qwen3DSparkModel"], "mask_token_id": MASK, "markov_rank": 0} | overrides
    write_drafter(folder, target_dir, block=7, taps=(2, 0), **fields)
    config = json.loads((folder / "config.json").read_text())
    config["target_layer_ids"] = config.pop("dflash_config")["target_layer_ids"]
    (folder / "config.json").write_text(json.dumps(config))
    weights, random = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(3)
    weights |= {
        name: torch.randn(config["vocab_size"], config["hidden_size"], generator=random)
        for name in ("embed_tokens.weight", "lm_head.weight")
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_drafter2(
    folder: Path,
    target_dir: Path,
    *,
    block: int = 6,
    taps: tuple[int, ...] = (2, 0),
    seed: int = 0,
    top_k: int = 5,
    **overrides: Any,
) -> Path:
    """A random z-lab DFlash2 drafter for the target in `target_dir`: two sliding layers, a convolution of two taps, a
    selector of rank 8.
    """
    sliding = {
        "layer_types": ["sliding_attention"] * 2,
        "sliding_window": 7,
        "use_sliding_window": True,
        "is_causal": False,
    }
    config = drafter_config(target_dir, layers=2, block=block, taps=taps, mask_id=MASK, **(sliding | overrides))
    config["architectures"] = ["DFlash2DraftModel"]
    config["dflash_config"] |= {
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 8,
        "selector_top_k": top_k,
    }
    config["dflash_config"] |= {"input_embedding_scale": 1.5, "output_multiplier": 0.5, "final_logit_softcapping": 6.0}
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(seed + 1)

    def random(*shape: int, scale: float) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator)

    tensors = drafter_tensors(config, seed) | {
        "candidate_selector.predecessor_codebook": random(vocab, 8, scale=1.0),
        "candidate_selector.successor_codebook": random(vocab, 8, scale=1.0),
        "candidate_selector.hidden_projection.weight": random(8, hidden, scale=hidden**-0.5),
    }
    for layer in range(2):
        for half in ("attention_conv", "mlp_conv"):
            tensors[f"layers.{layer}.{half}.base_kernel"] = random(2, 2, hidden, scale=0.7)
            tensors[f"layers.{layer}.{half}.kernel_projection.weight"] = random(
                2 * 2 * hidden // 16, hidden, scale=0.5 * hidden**-0.5
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_assistant(
    folder: Path,
    target_dir: Path,
    *,
    block: int = 6,
    taps: tuple[int, ...] = (2, 0),
    layer_types: Sequence[str],
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A random Muse drafter for the Muse target in `target_dir`, saved by transformers' own class.

    `overrides` are config fields.
    """
    torch.manual_seed(seed)
    target = AutoConfig.from_pretrained(target_dir).text_config
    shared = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )
    fields = {name: getattr(target, name) for name in shared}
    fields |= {
        "num_hidden_layers": len(layer_types),
        "layer_types": list(layer_types),
        "block_size": block,
        "target_layer_ids": list(taps),
    }
    fields |= {
        "mask_token_id": MASK,
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
        "pad_token_id": ENDOFTEXT,
        "initializer_range": 0.15,
    }
    model = AutoModel.from_config(
        AutoConfig.for_model("muse_glimmer_assistant", **(fields | overrides)), dtype=torch.float32
    )
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.1 * torch.randn_like(weight)
    model.save_pretrained(folder)
    return folder


def write_speculators(
    folder: Path,
    target_dir: Path,
    ids: Sequence[int],
    *,
    own_head: bool = True,
    sample_from_anchor: bool = False,
    block: int = 8,
    taps: tuple[int, ...] = (0, 1),
    seed: int = 0,
    **overrides: Any,
) -> Path:
    """A random drafter in the speculators layout that proposes the target's tokens `ids`; `range(VOCAB)` needs no maps.

    `block` counts the rows of a draft: with `sample_from_anchor` all of them propose. With `own_head` its head is
    random, else it is the target's rows and left out.
    """
    plain = drafter_config(target_dir, layers=2, block=block, taps=taps, mask_id=MASK, **overrides)
    vocab, tensors = plain["vocab_size"], drafter_tensors(plain, seed)
    config = speculators_config(plain, len(ids))
    if sample_from_anchor:
        config["sample_from_anchor"] = True
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = block
    if len(ids) != vocab:
        members = torch.zeros(vocab, dtype=torch.bool)
        members[list(ids)] = True
        tensors |= {"d2t": torch.tensor([token - row for row, token in enumerate(ids)]), "t2d": members}
        if own_head:
            tensors["lm_head.weight"] = (
                torch.randn(len(ids), plain["hidden_size"], generator=torch.Generator().manual_seed(seed + 1)) * 0.1
            )
        else:
            config["lm_head_from_target"] = True
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
