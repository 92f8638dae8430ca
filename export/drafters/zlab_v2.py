"""The z-lab DFlash2 layout: that of version 1 with dynamic convolutions and a candidate selector. Read only.

What the keys mean follows PyPI `dflash` 0.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..spec import Convolution, DrafterSpec, Selector
from ._layout import FolderLayout, named
from ._reader import Reader, count
from ._zlab_config import INSIDE, read_spec

SIGN = "a directory whose config.json says architectures: DFlash2DraftModel"
DIALECT = "zlab_v2"
ARCHITECTURE = "DFlash2DraftModel"


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


LAYOUT = FolderLayout(named(ARCHITECTURE), _spec)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify
