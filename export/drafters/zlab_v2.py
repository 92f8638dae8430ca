"""The z-lab DFlash2 layout: that of version 1 with dynamic convolutions and a candidate selector. Read only.

What the keys mean follows PyPI `dflash` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import DrafterCheckpoint
from ..checkpoints.drafter_folder import trained_with
from ..checkpoints.files import FileHashes, names_architecture, read_json, stated_dtype
from ..checkpoints.int8_source import open_tensors
from ..checkpoints.skeleton import check_shapes
from ..spec import Convolution, DrafterSpec, Selector
from ._reader import Reader, count
from ._v1_tensors import tensor_shapes
from ._zlab_config import INSIDE, read_spec

SIGN = "a directory whose config.json says architectures: DFlash2DraftModel"
DIALECT = "zlab_v2"
ARCHITECTURE = "DFlash2DraftModel"


def recognise(path: Path) -> str | None:
    """Why `path` holds such a drafter, or None."""
    if not (path / "config.json").is_file():
        return None
    return (
        f"its architectures name {ARCHITECTURE}"
        if names_architecture(read_json(path / "config.json"), ARCHITECTURE)
        else None
    )


def open_checkpoint(path: Path) -> DrafterCheckpoint:
    """The drafter in `path`.

    Raises `CheckpointError` for a missing or contradictory key and for missing, surplus or mis-shaped tensors.
    """
    raw = read_json(path / "config.json")
    tensors = open_tensors(path, raw)
    spec = _spec(raw, path, tensors.dtype("fc.weight") if "fc.weight" in tensors.shapes() else "unknown")
    check_shapes(_shapes(spec), tensors.shapes(), str(path))
    return DrafterCheckpoint(
        spec, tensors, path, FileHashes([path / "config.json", *tensors.paths]), *trained_with(raw)
    )


def specify(path: Path) -> DrafterSpec:
    """The spec in config.json alone. Raises `CheckpointError` as `open_checkpoint` does for its keys."""
    raw = read_json(path / "config.json")
    return _spec(raw, path, stated_dtype(raw))


def _spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    return _with_additions(read_spec(raw, path, dtype), Reader(raw, path, INSIDE))


def _with_additions(spec: DrafterSpec, reader: Reader) -> DrafterSpec:
    kernel, group = (reader.required("convolution", key, count) for key in ("conv_kernel_size", "conv_group_size"))
    if spec.hidden % group:
        raise reader.fault(
            "conv_group_size",
            f"groups of {group} columns do not divide {spec.hidden}",
            "each column is in one group",
            "check hidden_size",
        )
    rank, top_k = (reader.required("selector", key, count) for key in ("selector_rank", "selector_top_k"))
    if not 2 <= top_k <= (spec.vocab or top_k):
        raise reader.fault(
            "selector_top_k",
            f"selector_top_k = {top_k} leaves nothing to choose",
            f"a vocabulary has {spec.vocab} tokens",
            "check the key",
        )
    evidence = {**spec.evidence, **reader.evidence, "draft_vocab": "DFlash2 drafts with the target's whole head"}
    evidence |= {"sample_from_anchor": "DFlash2 drops the anchor's row"}
    return replace(
        spec, dialect=DIALECT, convolution=Convolution(kernel, group), selector=Selector(rank, top_k), evidence=evidence
    )


def _shapes(spec: DrafterSpec) -> dict[str, tuple[int | None, ...]]:
    assert spec.convolution is not None
    assert spec.selector is not None
    kernel, group, rank = spec.convolution.kernel, spec.convolution.group, spec.selector.rank
    shapes: dict[str, tuple[int | None, ...]] = {
        "candidate_selector.predecessor_codebook": (spec.vocab, rank),
        "candidate_selector.successor_codebook": (spec.vocab, rank),
        "candidate_selector.hidden_projection.weight": (rank, spec.hidden),
    }
    for layer in range(spec.layers):
        for half in ("attention_conv", "mlp_conv"):
            shapes[f"layers.{layer}.{half}.base_kernel"] = (2, kernel, spec.hidden)
            shapes[f"layers.{layer}.{half}.kernel_projection.weight"] = (2 * kernel * spec.hidden // group, spec.hidden)
    return tensor_shapes(spec) | shapes
