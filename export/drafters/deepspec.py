"""DeepSpec drafters without a Markov head: all keys at the top level, an embedding and a head of their own, and an
anchor whose row proposes.

A block of 7 is 7 proposals there: the rows of a draft.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..parameter_names import EMBEDDING
from ..spec import DrafterSpec
from ._layout import FolderLayout, named
from ._reader import Reader, flag, index
from ._zlab_config import INSIDE, read_spec

SIGN = "a directory whose config.json says architectures: Qwen3DSparkModel"
DIALECT = "deepspec"
ARCHITECTURE = "Qwen3DSparkModel"
NAMES = {"embed_tokens.weight": EMBEDDING}


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


LAYOUT = FolderLayout(named(ARCHITECTURE), _spec, NAMES)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify
