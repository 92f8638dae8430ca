"""Tensors of the DFlash v1 draft module, which the z-lab and the speculators layouts name alike."""

from __future__ import annotations

from ..spec import DrafterSpec


def tensor_shapes(spec: DrafterSpec, target_hidden: int | None = None) -> dict[str, tuple[int | None, ...]]:
    """Name and shape of every tensor. The width of `fc` is free unless `target_hidden` is given."""
    hidden, q, kv, inner = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.intermediate
    width = None if target_hidden is None else len(spec.taps) * target_hidden
    shapes: dict[str, tuple[int | None, ...]] = {
        "fc.weight": (hidden, width),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.attention_bias:
        layer |= {
            "self_attn.q_proj.bias": (q,),
            "self_attn.k_proj.bias": (kv,),
            "self_attn.v_proj.bias": (kv,),
            "self_attn.o_proj.bias": (hidden,),
        }
    return shapes | {f"layers.{index}.{name}": shape for index in range(spec.layers) for name, shape in layer.items()}
