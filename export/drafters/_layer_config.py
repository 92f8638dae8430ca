"""The keys of Qwen3's configuration that every layout writes for the draft layers."""

from __future__ import annotations

from typing import Any

from ..spec import DrafterSpec


def layer_config(spec: DrafterSpec) -> dict[str, Any]:
    """Widths, norm and rotary embedding of `spec`'s layers; which of them have windows each layout says in its own
    way.
    """
    return {
        "model_type": "qwen3",
        "num_hidden_layers": spec.layers,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.max_positions,
        "hidden_act": "silu",
        "attention_bias": spec.attention_bias,
        "rms_norm_eps": spec.rms_eps,
        "rope_parameters": {"rope_type": "default", **(spec.rope_scaling or {}), "rope_theta": spec.rope_theta},
    }
