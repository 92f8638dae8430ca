"""config.json of the speculators layout, read into a `DrafterSpec` and written from one.

What the keys mean follows PyPI `speculators` 0.9.0. Its `transformer_layer_config` is a transformers configuration,
which some versions write without the values that are the class's defaults: it is read through that class, as the
package reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..checkpoints.files import section
from ..spec import DrafterSpec
from ._kinds import FULL, SLIDING, check_kinds
from ._layer_config import layer_config
from ._reader import DEFAULTS, Reader, count, flag, index, indices, mapping, positive
from ._speculators_keys import LAYERS, TARGET_HEAD, TARGET_LAYERS, VERSION, check_keys, check_kind

DIALECT = "speculators"
_ROPE = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"} | {
    *(
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "low_freq_factor",
        "high_freq_factor",
    )
}


def read_spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    """The spec in config `raw` of the drafter in `path`, whose tensors are stored as `dtype`.

    Raises `CheckpointError` for a missing, malformed, contradictory or unknown key, and for a setting that is not
    supported.
    """
    reader = Reader(raw, path, LAYERS)
    check_keys(reader)
    layers = _layer_config(reader)
    check_kind(reader, layers)

    def nested(field: str, key: str, parse: Any) -> Any:
        reader.evidence[field] = (
            f"{LAYERS}.{key}"
            if key in reader.inside
            else f"{LAYERS}: {key} left out, the default of {layers.model_type}"
        )
        return reader.parsed(f"{LAYERS}.{key}", getattr(layers, key, None), parse)

    depth = nested("layers", "num_hidden_layers", count)
    vocab = nested("vocab", "vocab_size", count)
    theta, scaling = _rope(reader, layers)
    windows, causal = _windows(reader, layers, depth)
    reader.evidence |= {
        "dialect": "speculators_model_type",
        "name": "folder name",
        "dtype": "header of fc.weight",
        "windows": f"{LAYERS}.layer_types",
    }
    reader.evidence |= {"rope_theta": f"{LAYERS}.rope_parameters", "rope_scaling": f"{LAYERS}.rope_parameters"}
    reader.evidence |= {"windows_from_anchor": "a rule of the layout"}
    depth_of_target = _top(reader, "target_layers", TARGET_LAYERS)
    rows = _needed(reader, "block", "block_size", count)
    from_anchor = reader.parsed(
        "sample_from_anchor", _top(reader, "sample_from_anchor", "sample_from_anchor") or False, flag
    )
    reader.evidence.setdefault("sample_from_anchor", "sample_from_anchor left out, the default of the package")
    return DrafterSpec(
        dialect=DIALECT,
        name=path.name,
        layers=depth,
        hidden=nested("hidden", "hidden_size", count),
        heads=nested("heads", "num_attention_heads", count),
        kv_heads=nested("kv_heads", "num_key_value_heads", count),
        head_dim=nested("head_dim", "head_dim", count),
        intermediate=nested("intermediate", "intermediate_size", count),
        vocab=vocab,
        max_positions=nested("max_positions", "max_position_embeddings", count),
        block=rows + from_anchor,  # the layout counts the rows of the draft
        mask_id=_needed(reader, "mask_id", "mask_token_id", index),
        taps=_taps(reader),
        rms_eps=nested("rms_eps", "rms_norm_eps", positive),
        rope_theta=theta,
        dtype=dtype,
        target_layers=None if depth_of_target is None else reader.parsed(TARGET_LAYERS, depth_of_target, count),
        rope_scaling=scaling,
        attention_bias=nested("attention_bias", "attention_bias", flag),
        windows=windows,
        windows_from_anchor=any(windows),
        causal=causal,
        sample_from_anchor=from_anchor,
        draft_vocab=_draft_vocab(reader, vocab),
        evidence=DEFAULTS | reader.evidence,
    )


def write_config(spec: DrafterSpec, head_from_target: bool) -> dict[str, Any]:
    """The config.json of `spec`: `read_spec` gives it back, and PyPI `speculators` loads it."""
    greedy = {
        "proposal_type": "greedy",
        "speculative_tokens": spec.block - 1,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    config: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "dflash",
            "proposal_methods": [greedy],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "draft_vocab_size": spec.draft_vocab or spec.vocab,
        "block_size": spec.block - spec.sample_from_anchor,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in spec.taps],
        "mask_token_id": spec.mask_id,
        "sliding_window_non_causal": any(spec.windows) and not any(spec.causal),
        "sample_from_anchor": spec.sample_from_anchor,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        LAYERS: {
            **layer_config(spec),
            "attention_dropout": 0.0,
            "layer_types": [FULL if window is None else SLIDING for window in spec.windows or (None,) * spec.layers],
            "use_sliding_window": any(spec.windows),
            "sliding_window": next((window for window in spec.windows if window is not None), None),
            "tie_word_embeddings": False,
        },
        "dtype": spec.dtype,
    }
    if spec.target_layers is not None:
        config[TARGET_LAYERS] = spec.target_layers
    return config | ({TARGET_HEAD: True} if head_from_target else {})


def head_from_target(raw: Mapping[str, Any], path: Path) -> bool:
    """Whether config `raw` says that the head is made of the target's rows.

    Raises `CheckpointError` where it says neither yes nor no.
    """
    return bool(Reader(raw, path, LAYERS).parsed(TARGET_HEAD, raw.get(TARGET_HEAD, False), flag))


def _top(reader: Reader, field: str, key: str) -> Any:
    """The value of `key` at the top level."""
    if reader.raw.get(key) is not None:
        reader.evidence[field] = key
    return reader.raw.get(key)


def _needed(reader: Reader, field: str, key: str, parse: Any) -> Any:
    """`parse` of the value of `key` at the top level, which must be there."""
    if _top(reader, field, key) is None:
        raise reader.missing(key)
    return reader.parsed(key, reader.raw[key], parse)


def _layer_config(reader: Reader) -> Any:
    """`transformer_layer_config` as the transformers configuration that it is."""
    from transformers import AutoConfig

    if reader.raw.get(LAYERS) is None:
        raise reader.missing(LAYERS)
    given = dict(reader.parsed(LAYERS, reader.raw[LAYERS], mapping))
    kind = given.pop("model_type", "qwen3")
    try:
        config = type(AutoConfig.for_model(kind))(**given)
        config.head_dim, config.num_key_value_heads, config.attention_bias, config.hidden_act  # noqa: B018  (what the draft layer reads)
    except Exception as error:  # configuration classes refuse in as many ways as there are values
        raise reader.fault(
            LAYERS,
            f"{LAYERS} is no configuration of draft layers",
            f"{type(error).__name__}: {error}",
            "take config.json from the drafter's original repository",
        ) from error
    return config


def _rope(reader: Reader, layers: Any) -> tuple[float, Mapping[str, object] | None]:
    """(theta, scaling) of one rotary embedding for all layers."""
    found = dict(section(getattr(layers, "rope_parameters", None)))
    key = f"{LAYERS}.rope_parameters"
    strange = sorted(
        name for name in found if name not in _ROPE and not (name == "partial_rotary_factor" and found[name] == 1)
    )
    if strange:
        raise reader.fault(
            key,
            f"rotary parameters {', '.join(strange)} are not supported",
            "they change which dimensions turn, and how far",
            "use a drafter without them",
        )
    theta = reader.parsed(f"{key}.rope_theta", found.pop("rope_theta", None), positive)
    found.pop("partial_rotary_factor", None)
    return theta, None if found.get("rope_type", "default") == "default" else found


def _windows(reader: Reader, layers: Any, depth: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """(window, causality) of every layer: full layers look both ways, sliding ones only where the drafter says so."""
    kinds = getattr(layers, "layer_types", None) or [FULL] * depth
    check_kinds(reader, f"{LAYERS}.layer_types", kinds, depth)
    if SLIDING not in kinds:
        reader.evidence["causal"] = "full layers see the whole block"
        return (None,) * depth, (False,) * depth
    window = getattr(layers, "sliding_window", None)
    if window is None:
        raise reader.fault(
            f"{LAYERS}.sliding_window",
            "layer_types has sliding layers but there is no window",
            f"sliding_window is missing, or {layers.model_type} drops it because use_sliding_window is not set",
            "give both as the drafter was trained with them",
        )
    window = reader.parsed(f"{LAYERS}.sliding_window", window, count)
    both_ways = reader.parsed(
        "sliding_window_non_causal", _top(reader, "causal", "sliding_window_non_causal") or False, flag
    )
    reader.evidence.setdefault("causal", "sliding_window_non_causal left out, the default of the package")
    slides = tuple(kind == SLIDING for kind in kinds)
    return tuple(window if sliding else None for sliding in slides), tuple(
        sliding and not both_ways for sliding in slides
    )


def _taps(reader: Reader) -> tuple[int, ...]:
    """`aux_hidden_state_layer_ids` counts as transformers' `hidden_states` do: entry L + 1 is the output of layer L."""
    ids: tuple[int, ...] = _needed(reader, "taps", "aux_hidden_state_layer_ids", indices)
    if 0 in ids:
        raise reader.fault(
            "aux_hidden_state_layer_ids",
            "the embedding's output cannot be tapped",
            "id 0 is what enters the first layer, and taps are outputs of layers",
            "use a drafter that taps layers",
        )
    return tuple(number - 1 for number in ids)


def _draft_vocab(reader: Reader, vocab: int) -> int | None:
    size: int = _needed(reader, "draft_vocab", "draft_vocab_size", count)
    if size > vocab:
        raise reader.fault(
            "draft_vocab_size",
            f"a draft vocabulary of {size} is larger than the target's {vocab}",
            "its tokens are some of the target's",
            "take config.json from the drafter's original repository",
        )
    return None if size == vocab else size
