"""A random llama target and drafter small enough to train in seconds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.spec import DrafterSpec

HIDDEN, VOCAB, LAYERS, TAPS = 64, 160, 4, (0, 1, 2)


def target(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def drafter(
    seed: int = 0,
    block: int = 5,
    windows: tuple[int | None, ...] = (),
    causal: tuple[bool, ...] = (),
    rope_scaling: Mapping[str, object] | None = None,
    sample_from_anchor: bool = False,
    windows_from_anchor: bool = False,
) -> DflashV1:
    torch.manual_seed(seed)
    spec = DrafterSpec(
        dialect="zlab_v1",
        name="tiny",
        layers=2,
        hidden=HIDDEN,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        vocab=VOCAB,
        max_positions=256,
        block=block,
        mask_id=7,
        taps=TAPS,
        sample_from_anchor=sample_from_anchor,
        rms_eps=1e-6,
        rope_theta=10000.0,
        dtype="float32",
        target_layers=LAYERS,
        windows=windows,
        windows_from_anchor=windows_from_anchor,
        causal=causal,
        rope_scaling=rope_scaling,
    )
    return DflashV1(spec, len(TAPS) * HIDDEN)
