"""The layout of transformers' `MuseGlimmerAssistantModel`: all keys at the top level, and two tensors under names of
their own.

It is non-causal, though no key says so, and its windows take in a row more than others: |q - k| <= sliding_window.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.drafter_folder import TRAINED_WITH
from ..checkpoints.quantization_config import KEY
from ..spec import DrafterSpec
from ._kinds import KINDS, check_kinds
from ._layout import FolderLayout
from ._reader import DEFAULTS, Reader, count, index, indices, positive
from ._rope import read_rope

SIGN = "a directory whose config.json says model_type: muse_glimmer_assistant"
DIALECT = "muse_assistant"
MODEL_TYPE = "muse_glimmer_assistant"
NAMES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
"""tensors of the context encoder, and what they are called here"""


def _evidence(config: Mapping[str, Any]) -> str | None:
    return f"its model_type is {MODEL_TYPE}" if config.get("model_type") == MODEL_TYPE else None


def _spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    from transformers import MuseGlimmerAssistantConfig

    reader = Reader(raw, path, "")
    reader.refuse_unknown(
        {*MuseGlimmerAssistantConfig().to_dict(), "rope_theta", "rope_scaling", KEY, TRAINED_WITH}, "this layout"
    )
    if raw.get("hidden_act") != "silu":
        raise reader.fault(
            "hidden_act",
            f"hidden_act = {raw.get('hidden_act')!r} is not supported",
            "its MLP is not SwiGLU",
            "use a drafter with silu",
        )
    layers = reader.required("layers", "num_hidden_layers", count)
    theta, scaling = read_rope(reader)
    windows = _windows(reader, layers)
    reader.evidence |= {
        "dialect": "model_type",
        "name": "folder name",
        "dtype": "header of encoder.fc.weight",
        "vocab": "the layout does not say: the target's",
        "target_layers": "the layout does not say",
        "attention_bias": "the layout has none",
        "causal": "every layer looks both ways, a rule of the layout",
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
        vocab=None,
        max_positions=reader.required("max_positions", "max_position_embeddings", count),
        block=reader.required("block", "block_size", count),
        mask_id=reader.required("mask_id", "mask_token_id", index),
        taps=reader.required("taps", "target_layer_ids", indices),
        rms_eps=reader.required("rms_eps", "rms_norm_eps", positive),
        rope_theta=theta,
        dtype=dtype,
        rope_scaling=scaling,
        windows=windows,
        causal=(False,) * layers,
        evidence=DEFAULTS | reader.evidence,
    )


def _windows(reader: Reader, layers: int) -> tuple[int | None, ...]:
    kinds = reader.optional("windows", "layer_types")
    check_kinds(reader, "layer_types", kinds, layers)
    if KINDS[1] not in kinds:
        return (None,) * layers
    # Elsewhere a window of W keeps q - k < W.
    window = reader.required("windows", "sliding_window", count) + 1
    reader.evidence["windows"] = "layer_types; sliding_window + 1, since it counts |q - k| <= sliding_window"
    return tuple(window if kind == KINDS[1] else None for kind in kinds)


LAYOUT = FolderLayout(_evidence, _spec, NAMES)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify
