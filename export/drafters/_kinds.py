"""Kinds of draft layers, as transformers names them in `layer_types`."""

from __future__ import annotations

from ._reader import Reader

KINDS = FULL, SLIDING = "full_attention", "sliding_attention"


def check_kinds(reader: Reader, key: str, kinds: object, layers: int) -> None:
    """Raise `CheckpointError` unless `kinds`, the value of `key`, is one of `KINDS` for each of `layers`."""
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in KINDS for kind in kinds):
        raise reader.fault(
            key,
            f"layer_types must be {layers} of {', '.join(KINDS)}",
            f"found {kinds!r}",
            "take config.json from the drafter's original repository",
        )
