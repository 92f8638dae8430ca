"""config.json of the z-lab layout, read into a `DrafterSpec` and written from one.

Nothing that matters is ever guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..spec import DrafterSpec
from ._kinds import KINDS, check_kinds
from ._layer_config import layer_config
from ._reader import DEFAULTS, Reader, count, flag, index, indices, positive
from ._rope import read_rope

DIALECT = "zlab_v1"
INSIDE = "dflash_config"
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu"),
}
"""keys that change the arithmetic, and the values with which they do not"""


def read_spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    """The spec in config `raw` of the drafter in `path`, whose tensors are stored as `dtype`.

    Raises `CheckpointError` for a missing, malformed or contradictory key.
    """
    reader = Reader(raw, path, INSIDE)
    for key, neutral in NEUTRAL.items():
        for place, value in reader.places(key).items():
            if value not in neutral:
                raise reader.fault(
                    place,
                    f"{key} = {value!r} is not supported",
                    "z-lab v1 drafters do without it; ignoring it would change the output",
                    "use a z-lab v1 drafter",
                )
    layers = reader.required("layers", "num_hidden_layers", count)
    windows, causal = _attention(reader, layers)
    target_layers = reader.optional("target_layers", "num_target_layers")
    bias = reader.optional("attention_bias", "attention_bias")
    theta, scaling = read_rope(reader)
    reader.evidence |= {
        "dialect": "architectures",
        "name": "folder name",
        "dtype": "header of fc.weight",
        "sample_from_anchor": "z-lab v1 drops the anchor's row",
        "draft_vocab": "z-lab v1 drafts with the target's whole head",
    }
    return DrafterSpec(
        dialect=DIALECT,
        name=path.name,
        layers=layers,
        hidden=reader.required("hidden", "hidden_size", count),
        heads=reader.required("heads", "num_attention_heads", count),
        kv_heads=reader.required("kv_heads", "num_key_value_heads", count),
        head_dim=reader.required("head_dim", "head_dim", count),
        intermediate=reader.required("intermediate", "intermediate_size", count),
        vocab=reader.required("vocab", "vocab_size", count),
        max_positions=reader.required("max_positions", "max_position_embeddings", count),
        embedding_scale=_factor(reader, "embedding_scale", "input_embedding_scale"),
        output_multiplier=_factor(reader, "output_multiplier", "output_multiplier"),
        logit_softcap=_softcap(reader),
        block=reader.required("block", "block_size", count),
        mask_id=reader.required("mask_id", "mask_token_id", index),
        taps=reader.required("taps", "target_layer_ids", indices),
        rms_eps=reader.required("rms_eps", "rms_norm_eps", positive),
        rope_theta=theta,
        dtype=dtype,
        target_layers=None if target_layers is None else reader.parsed("num_target_layers", target_layers, count),
        rope_scaling=scaling,
        attention_bias=bias is not None and reader.parsed("attention_bias", bias, flag),
        windows=windows,
        causal=causal,
        evidence=DEFAULTS | reader.evidence,
    )


def _factors(spec: DrafterSpec) -> dict[str, float]:
    declared = {"input_embedding_scale": spec.embedding_scale, "output_multiplier": spec.output_multiplier}
    return {key: value for key, value in declared.items() if value != 1} | (
        {} if spec.logit_softcap is None else {"final_logit_softcapping": spec.logit_softcap}
    )


def write_config(spec: DrafterSpec) -> dict[str, Any]:
    """The config.json of `spec`: `read_spec` gives it back, and PyPI `dflash` loads it as a Qwen3 config."""
    sliding = [window for window in spec.windows if window is not None]
    kinds = [KINDS[window is not None] for window in spec.windows] or [KINDS[0]] * spec.layers
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "block_size": spec.block,
        "num_target_layers": spec.target_layers,
        INSIDE: {"mask_token_id": spec.mask_id, "target_layer_ids": list(spec.taps), **_factors(spec)},
        **layer_config(spec),
        "layer_types": kinds,
        "dtype": spec.dtype,
    }
    if sliding:
        config |= {"use_sliding_window": True, "sliding_window": sliding[0]}
    if spec.causal and spec.causal != tuple(window is not None for window in spec.windows):
        config["is_causal"] = spec.causal[0]
    return config


def _factor(reader: Reader, field: str, key: str) -> float:
    value = reader.optional(field, key)
    return 1.0 if value is None else float(reader.parsed(key, value, positive))


def _softcap(reader: Reader) -> float | None:
    value = reader.optional("logit_softcap", "final_logit_softcapping")
    return None if value is None or value == 0 else float(reader.parsed("final_logit_softcapping", value, positive))


def _attention(reader: Reader, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and causality of every layer.

    Causality: `is_causal`, else `dflash_config.causal`, else sliding layers only.
    """
    kinds = reader.optional("windows", "layer_types")
    if kinds is None:
        if _slides(reader):
            raise reader.fault(
                "layer_types",
                "use_sliding_window is set but layer_types is missing",
                "which layers slide would be a guess",
                "add layer_types to config.json",
            )
        kinds = [KINDS[0]] * layers
        reader.evidence["windows"] = "no layer_types and no use_sliding_window: full attention"
    check_kinds(reader, "layer_types", kinds, layers)
    sliding = tuple(kind == KINDS[1] for kind in kinds)
    window = _window(reader) if any(sliding) else None
    causal = reader.optional("causal", "is_causal")
    if causal is None and reader.inside.get("causal") is not None:
        causal, reader.evidence["causal"] = reader.inside["causal"], f"{INSIDE}.causal"
    if causal is None:
        reader.evidence["causal"] = "no is_causal: sliding layers are causal, full ones are not"
        return tuple(window if slides else None for slides in sliding), sliding
    return tuple(window if slides else None for slides in sliding), (reader.parsed("is_causal", causal, flag),) * layers


def _slides(reader: Reader) -> bool:
    value = reader.raw.get("use_sliding_window")
    return value is not None and bool(reader.parsed("use_sliding_window", value, flag))


def _window(reader: Reader) -> int:
    # PyPI dflash ignores the window unless use_sliding_window is set, which then contradicts layer_types.
    if not _slides(reader):
        raise reader.fault(
            "use_sliding_window",
            "layer_types has sliding layers but use_sliding_window is not set",
            "whether the window applies would be a guess",
            'add "use_sliding_window": true',
        )
    size: int = reader.required("windows", "sliding_window", count)
    return size
