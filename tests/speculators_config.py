"""What speculators writes beside a drafter, for tests of our own reader."""

from __future__ import annotations

from typing import Any


def speculators_config(plain: dict[str, Any], draft_vocab: int) -> dict[str, Any]:
    """The `config.json` that speculators 0.9.0 with transformers 5.24 writes for the drafter of the z-lab config
    `plain`.
    """
    layers: tuple[str, ...] = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    )
    layers = (*layers, "num_hidden_layers", "hidden_act", "rms_norm_eps", "attention_bias", "layer_types")
    greedy = {
        "accept_tolerance": 0.0,
        "proposal_type": "greedy",
        "speculative_tokens": plain["block_size"] - 1,
        "verifier_accept_k": 1,
    }
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"": "config.DFlashSpeculatorConfig"},
        "aux_hidden_state_layer_ids": [tap + 1 for tap in plain["dflash_config"]["target_layer_ids"]],
        "block_size": plain["block_size"],
        "draft_vocab_size": draft_vocab,
        "dtype": "float32",
        "mask_token_id": plain["dflash_config"]["mask_token_id"],
        "sample_from_anchor": False,
        "sliding_window_non_causal": False,
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": None},
        },
        "speculators_model_type": "dflash",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {name: plain[name] for name in layers}
        | {"model_type": "qwen3", "attention_dropout": 0.0, "max_window_layers": 28}
        | {"use_sliding_window": plain.get("use_sliding_window", False), "sliding_window": plain.get("sliding_window")}
        | {
            "rope_parameters": {"rope_theta": plain["rope_theta"], "rope_type": "default"},
            "tie_word_embeddings": False,
            "use_cache": True,
        }
        | {
            "transformers_version": "5.24.0",
            "initializer_range": 0.02,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        },
        "transformers_version": "5.24.0",
    }
