"""DeepSpec drafters without a Markov head: all keys at the top level, an embedding and a head of their own, and an
anchor whose row proposes.

A block of 7 is 7 proposals there: the rows of a draft.
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
from ..checkpoints.renamed_source import RenamedSource
from ..checkpoints.skeleton import check_shapes
from ..parameter_names import EMBEDDING, HEAD
from ..spec import DrafterSpec
from ._reader import Reader, flag, index
from ._v1_tensors import tensor_shapes
from ._zlab_config import INSIDE, read_spec

SIGN = "a directory whose config.json says architectures: Qwen3DSparkModel"
DIALECT = "deepspec"
ARCHITECTURE = "Qwen3DSparkModel"
NAMES = {"embed_tokens.weight": EMBEDDING}


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

    Raises `CheckpointError` for a missing or contradictory key, for a head that this version does not compute
    (DSpark's), and for missing, surplus or mis-shaped tensors.
    """
    raw = read_json(path / "config.json")
    tensors = RenamedSource(open_tensors(path, raw), lambda name: NAMES.get(name, name))
    spec = _spec(raw, path, tensors.dtype("fc.weight") if "fc.weight" in tensors.shapes() else "unknown")
    check_shapes(
        tensor_shapes(spec) | {EMBEDDING: (spec.vocab, spec.hidden), HEAD: (spec.vocab, spec.hidden)},
        tensors.shapes(),
        str(path),
    )
    return DrafterCheckpoint(
        spec, tensors, path, FileHashes([path / "config.json", *tensors.paths]), *trained_with(raw)
    )


def specify(path: Path) -> DrafterSpec:
    """The spec in config.json alone. Raises `CheckpointError` as `open_checkpoint` does for its keys."""
    raw = read_json(path / "config.json")
    return _spec(raw, path, stated_dtype(raw))


def _spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    reader = Reader(raw, path, INSIDE)
    _refuse_heads(reader)
    plain = read_spec(raw, path, dtype)
    given = reader.optional("sample_from_anchor", "sample_from_anchor")
    from_anchor = True if given is None else reader.parsed("sample_from_anchor", given, flag)
    evidence = {
        **plain.evidence,
        "sample_from_anchor": "the anchor's row proposes, a rule of the layout",
        **reader.evidence,
    }
    evidence |= {
        "own_embedding": "embed_tokens.weight and lm_head.weight are stored",
        "draft_vocab": "a head of its own, over the whole vocabulary",
    }
    return replace(
        plain,
        dialect=DIALECT,
        block=plain.block + from_anchor,
        sample_from_anchor=from_anchor,
        own_embedding=True,
        evidence=evidence,
    )


def _refuse_heads(reader: Reader) -> None:
    rank = reader.required("dialect", "markov_rank", index)
    for key, value in (("markov_rank", rank), ("dspark_markov_rank", reader.raw.get("dspark_markov_rank") or 0)):
        if value:
            raise reader.fault(
                key,
                f"a Markov head of rank {value} is not supported",
                "this is DSpark: each proposal there depends on the one before",
                "use a drafter with markov_rank 0",
            )
    for key in ("attention_sink_bias", "use_swa", "confidence_head", "enable_confidence_head"):
        for place, value in reader.places(key).items():
            if value:
                raise reader.fault(
                    place,
                    f"{key} is not supported",
                    "it changes what the drafter computes, or adds a head",
                    "use a drafter without it",
                )
