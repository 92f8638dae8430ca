"""A drafter as one GGUF file of the architecture `dflash`, as llama.cpp converts it.

`dflash.target_layers` counts what enters a layer: entry L + 1 is the output of layer L. Other architectures that end in
`dflash-draft` are of forks, which count in ways of their own.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.checkpoint import DrafterCheckpoint
from ..checkpoints.files import FileHashes
from ..gguf_format.config import read_rope
from ..gguf_format.reading import GgufFile
from ..gguf_format.tensors import GgufSource, stored_dtype
from ..spec import DrafterSpec
from ._layout import check_tensors
from ._reader import DEFAULTS

SIGN = "a .gguf file whose architecture is dflash"
DIALECT = "gguf"
ARCHITECTURE, FORKS = "dflash", "dflash-draft"
UNDERSTOOD = {
    *(
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "vocab_size",
        "block_size",
        "target_layers",
    ),
    *(
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
    ),
    *(
        "attention.causal",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base",
        "rope.dimension_count",
    ),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
}
"""metadata of the architecture; any other may change what is computed"""
ONCE = {
    "fc.weight": ("fc.weight", "dflash_fc.weight", "dflash.fc.weight"),
    "hidden_norm.weight": (
        "enc.output_norm.weight",
        "dflash_hidden_norm.weight",
        "dflash.hidden_norm.weight",
        "hidden_norm.weight",
    ),
    "norm.weight": ("output_norm.weight",),
}
"""our name of a tensor that there is once → what converters have called it"""
IN_LAYER = {
    "input_layernorm": ("attn_norm",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.q_norm": ("attn_q_norm",),
    "self_attn.k_norm": ("attn_k_norm",),
    "post_attention_layernorm": ("ffn_norm", "post_attention_norm", "attn_post_norm"),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_down",),
}
_HEAD = struct.Struct("<4sIQQQ")
"""magic, version, number of tensors, number of keys, length of the first key"""


def recognise(path: Path) -> str | None:
    """Why `path` is such a file, or None.

    Only its first bytes are read: the architecture is the first key of a GGUF file.
    """
    found = _architecture(path)
    return None if found is None or not found.endswith((ARCHITECTURE, FORKS)) else f"its architecture is {found}"


def open_checkpoint(path: Path) -> DrafterCheckpoint:
    """The drafter in the file `path`.

    Raises `CheckpointError` for a damaged file, a fork's architecture, metadata that is missing or not understood, and
    tensors that do not fit it.
    """
    file = GgufFile(path)
    name = str(file.require("general.architecture"))
    if name != ARCHITECTURE:
        raise file.fault(
            "general.architecture",
            f"the architecture {name!r} is a fork's",
            "forks number the target's layers in ways of their own",
            "convert with llama.cpp",
        )
    _check_keys(file)
    places = _places(file)
    tensors = GgufSource(file, places)
    spec = _spec(file, path, tensors)
    check_tensors(spec, tensors, {}, path)
    return DrafterCheckpoint(spec, tensors, path, FileHashes([path]))


def specify(path: Path) -> DrafterSpec:
    """The spec alone, for which the file's header is read."""
    return open_checkpoint(path).spec


def _architecture(path: Path) -> str | None:
    if path.suffix != ".gguf" or not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            return None
        magic, _, _, _, length = _HEAD.unpack(head)
        if magic != b"GGUF" or length != len("general.architecture") or file.read(length) != b"general.architecture":
            return None
        kind, size = struct.unpack("<IQ", file.read(12).ljust(12, b"\0"))
        string, longest = 8, 64  # of GGUF's types; no architecture has a longer name
        return file.read(size).decode("utf-8", "replace") if kind == string and size <= longest else None


def _check_keys(file: GgufFile) -> None:
    strange = sorted(
        key
        for key in file.metadata
        if key.startswith(f"{ARCHITECTURE}.") and key.removeprefix(f"{ARCHITECTURE}.") not in UNDERSTOOD
    )
    if strange:
        raise file.fault(
            strange[0],
            f"metadata not understood: {', '.join(strange)}",
            "it may change the arithmetic: DFlash2 and DSpark drafters, for two, are of this architecture too",
            "open the drafter's safetensors directory instead",
        )


def _layers(file: GgufFile) -> int:
    """Raises `CheckpointError` for more than there are tensors."""
    layers = file.size(f"{ARCHITECTURE}.block_count")
    if layers > len(file.tensors):
        raise file.fault(
            f"{ARCHITECTURE}.block_count",
            f"block_count cannot be {layers}",
            f"the file has {len(file.tensors)} tensors, and a layer has several",
            "convert the drafter again",
        )
    return layers


def _places(file: GgufFile) -> dict[str, str]:
    """The file's tensor names and what they are here."""
    named = {stored: name for name, stored_as in ONCE.items() for stored in stored_as}
    for layer in range(_layers(file)):
        for name, stored_as in IN_LAYER.items():
            for stored in stored_as:
                for part in ("weight", "bias"):
                    named[f"blk.{layer}.{stored}.{part}"] = f"layers.{layer}.{name}.{part}"
    found = {stored: name for stored, name in named.items() if stored in file.tensors}
    twice = sorted(name for name in found.values() if list(found.values()).count(name) > 1)
    if twice:
        raise CheckpointError(
            f"two tensors are {twice[0]}",
            where=str(file.path),
            why="two converters' names are mixed",
            fix="convert the drafter again",
        )
    return found


def _spec(file: GgufFile, path: Path, tensors: GgufSource) -> DrafterSpec:
    def key(name: str) -> str:
        return f"{ARCHITECTURE}.{name}"

    layers, heads = _layers(file), file.size(key("attention.head_count"))
    hidden = file.size(key("embedding_length"))
    windows, causal = _attention(file, layers)
    rope = read_rope(file, ARCHITECTURE)
    theta = float(rope.pop("rope_theta"))
    taps = file.require(key("target_layers"))
    if not isinstance(taps, list) or not taps or any(not isinstance(tap, int) or tap < 1 for tap in taps):
        raise file.fault(
            key("target_layers"),
            f"target_layers cannot be {taps!r}",
            "they are numbers of layers from 1 up: what enters layer 0 is no tap",
        )
    mask = file.require("tokenizer.ggml.mask_token_id")
    where = {
        "layers": "block_count",
        "hidden": "embedding_length",
        "heads": "attention.head_count",
        "kv_heads": "attention.head_count_kv",
    }
    where |= {
        "head_dim": "attention.key_length",
        "intermediate": "feed_forward_length",
        "max_positions": "context_length",
        "block": "block_size",
    }
    where |= {
        "rms_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
        "rope_scaling": "rope.scaling.type",
    }
    evidence = {field: key(name) for field, name in where.items()} | {"name": "file name", "dtype": "how fc is stored"}
    evidence |= {
        "taps": f"{key('target_layers')}, each less one",
        "mask_id": "tokenizer.ggml.mask_token_id",
        "dialect": "general.architecture",
    }
    evidence |= {
        "windows": key("attention.sliding_window_pattern"),
        "causal": key("attention.causal"),
        "vocab": "the file does not say: the target's",
    }
    return DrafterSpec(
        dialect=DIALECT,
        name=path.stem,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=file.size(key("attention.head_count_kv"), heads),
        head_dim=file.size(key("attention.key_length"), hidden // heads),
        intermediate=file.size(key("feed_forward_length")),
        vocab=None,
        max_positions=file.size(key("context_length")),
        block=file.size(key("block_size")),
        mask_id=int(mask),
        taps=tuple(tap - 1 for tap in taps),
        rms_eps=file.decimal(key("attention.layer_norm_rms_epsilon")),
        rope_theta=theta,
        dtype=stored_dtype(tensors, "fc.weight"),
        rope_scaling=None if rope["rope_type"] == "default" else rope,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        windows=windows,
        causal=causal,
        evidence=DEFAULTS | evidence,
    )


def _attention(file: GgufFile, layers: int) -> tuple[tuple[int | None, ...], tuple[bool, ...]]:
    """Window and causality of every layer."""
    pattern: Any = file.metadata.get(f"{ARCHITECTURE}.attention.sliding_window_pattern")
    if pattern is None and f"{ARCHITECTURE}.attention.sliding_window" in file.metadata:
        raise file.fault(
            f"{ARCHITECTURE}.attention.sliding_window_pattern",
            "there is a window, and nothing says of which layers",
            "a guess would cost acceptance past it",
        )
    slides = [False] * layers if pattern is None else pattern
    if not isinstance(slides, list) or len(slides) != layers or any(value not in (True, False) for value in slides):
        raise file.fault(
            f"{ARCHITECTURE}.attention.sliding_window_pattern",
            f"it must be {layers} of true and false",
            f"found {pattern!r}",
        )
    window = file.size(f"{ARCHITECTURE}.attention.sliding_window") if any(slides) else None
    causal = file.metadata.get(f"{ARCHITECTURE}.attention.causal", None if any(slides) else False)
    if causal not in (True, False):
        raise file.fault(
            f"{ARCHITECTURE}.attention.causal",
            "nothing says whether sliding layers look ahead"
            if causal is None
            else f"attention.causal cannot be {causal!r}",
            "converters that leave it out disagree on what that means",
            "add the key as the drafter was trained, or open the drafter's safetensors directory",
        )
    return tuple(window if slide else None for slide in slides), (bool(causal),) * layers
