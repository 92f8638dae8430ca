"""The layout that ModelOpt exports: z-lab's names, with the window in `dflash_config` (`use_swa`, `swa_window_size`)
and causality declared there.

Implementations disagree on what `use_swa` means where `layer_types` calls every layer full, and on causality where
nothing says it: both are asked for here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.files import names_architecture, section
from ..spec import DrafterSpec
from ._kinds import KINDS, check_kinds
from ._layout import FolderLayout
from ._reader import Reader, count, flag
from ._zlab_config import INSIDE, read_spec

SIGN = f"a directory whose config.json says architectures: DFlashDraftModel and has {INSIDE}.use_swa"
DIALECT = "modelopt"


def _evidence(config: Mapping[str, Any]) -> str | None:
    ours = (
        "use_swa" in section(config.get(INSIDE))
        and names_architecture(config, "DFlashDraftModel")
        and "speculators_model_type" not in config
    )
    return f"its {INSIDE} has use_swa" if ours else None


def _spec(raw: Mapping[str, Any], path: Path, dtype: str) -> DrafterSpec:
    reader = Reader(raw, path, INSIDE)
    _refuse_sinks(reader)
    # Without its windows it is a z-lab drafter; those are read here.
    plain = {
        key: value
        for key, value in raw.items()
        if key not in ("layer_types", "use_sliding_window", "sliding_window", "is_causal")
    }
    plain[INSIDE] = {
        key: value for key, value in section(raw.get(INSIDE)).items() if key not in ("is_causal", "causal")
    }
    return _with_windows(read_spec(plain, path, dtype), reader)


def _refuse_sinks(reader: Reader) -> None:
    for place, value in reader.places("attention_sink_bias").items():
        if reader.parsed(place, value, flag):
            raise reader.fault(
                place,
                "attention_sink_bias is not supported",
                "no implementation could be found to test it against",
                "use a drafter without attention sinks",
            )


def _with_windows(spec: DrafterSpec, reader: Reader) -> DrafterSpec:
    slides: Any = reader.required("windows", "use_swa", flag)
    kinds = reader.optional("windows", "layer_types") or [KINDS[1] if slides else KINDS[0]] * spec.layers
    check_kinds(reader, "layer_types", kinds, spec.layers)
    if slides != (KINDS[1] in kinds):
        raise reader.fault(
            "layer_types",
            f"use_swa is {str(slides).lower()}, and layer_types names {'no' if slides else 'a'} sliding layer",
            "some programs then run every layer with the window and some none; the wrong one accepts little past it",
            f"name the layers trained with a window {KINDS[1]} in layer_types, or leave layer_types out where all were",
        )
    window: int | None = reader.required("windows", "swa_window_size", count) if slides else None
    given = reader.raw.get("sliding_window")
    if slides and given not in (None, window):
        raise reader.fault(
            "sliding_window",
            f"sliding_window is {given}, swa_window_size {window}",
            "a layer has one window",
            "keep the one trained with",
        )
    # `is_causal` wins, as in the z-lab layout.
    causal = reader.optional("causal", "is_causal")
    causal = reader.required("causal", "causal", flag) if causal is None else reader.parsed("is_causal", causal, flag)
    reader.evidence["windows"] = f"{INSIDE}.swa_window_size and layer_types" if slides else f"{INSIDE}.use_swa is false"
    windows = tuple(window if kind == KINDS[1] else None for kind in kinds)
    evidence = {**spec.evidence, **reader.evidence}
    return replace(spec, dialect=DIALECT, windows=windows, causal=(causal,) * spec.layers, evidence=evidence)


LAYOUT = FolderLayout(_evidence, _spec)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify
