"""Reading config.json of a drafter: typed look-ups that remember where a value came from, and what a value may be."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.files import section

HARMLESS = ("initializer_range", "use_cache", "attention_dropout", "torch_dtype")
"""keys that say nothing about what an inference computes"""


DEFAULTS = {
    "windows_from_anchor": "each row counts its own window, a rule of the layout",
    "own_embedding": "the layout shares the target's",
    "embedding_scale": "left out: none",
    "output_multiplier": "left out: none",
    "logit_softcap": "left out: none",
    "convolution": "only DFlash2 has one",
    "selector": "only DFlash2 has one",
    "sample_from_anchor": "the layout drops the anchor's row",
    "draft_vocab": "the layout drafts with the target's whole head",
    "target_layers": "left out",
    "attention_bias": "left out: none",
    "rope_scaling": "left out: none",
}
"""evidence for fields that have their default where a layout does not declare them"""


class Reader:
    """Typed look-ups in a config that remember where each value came from."""

    def __init__(self, raw: Mapping[str, Any], path: Path, inside: str) -> None:
        """`inside` is the nested object that may hold a key as well as the top level does."""
        self.raw, self.path, self.nested = raw, path, inside
        self.inside = section(raw.get(inside))
        self.evidence: dict[str, str] = {}

    def places(self, key: str) -> dict[str, Any]:
        """Every place that has `key`, with its value."""
        found = {f"{self.nested}.{key}": self.inside.get(key), key: self.raw.get(key)}
        return {place: value for place, value in found.items() if value is not None}

    def optional(self, field: str, key: str) -> Any:
        """The value of `key`, inside the nested object or at the top level, or None.

        Raises `CheckpointError` when the two differ.
        """
        found = self.places(key)
        if len(found) == 2 and found[key] != found[f"{self.nested}.{key}"]:
            raise self.fault(
                key,
                f"{key} is given twice and differs",
                ", ".join(f"{place} = {value}" for place, value in found.items()),
                "keep the value the drafter was trained with",
            )
        for place, value in found.items():
            self.evidence[field] = place
            return value
        return None

    def required(self, field: str, key: str, parse: Callable[[Any], Any]) -> Any:
        """`parse` of the value of `key`. Raises `CheckpointError` when it is missing or `parse` refuses it."""
        value = self.optional(field, key)
        if value is None:
            raise self.missing(key)
        return self.parsed(key, value, parse)

    def parsed(self, key: str, value: Any, parse: Callable[[Any], Any]) -> Any:
        """`parse(value)`, with a refusal turned into a `CheckpointError`."""
        try:
            return parse(value)
        except ValueError as error:
            raise self.fault(
                key, f"{key} cannot be {value!r}", str(error), "take config.json from the drafter's original repository"
            ) from None

    def refuse_unknown(self, known: Collection[str], layout: str) -> None:
        """Raise `CheckpointError` for keys of the top level that are set and neither in `known` nor keys of every
        transformers configuration.
        """
        from transformers import PreTrainedConfig

        allowed = {*known, *PreTrainedConfig().to_dict(), *HARMLESS}
        unknown = sorted(
            key for key, value in self.raw.items() if key not in allowed and value not in (None, False, 0, [], {})
        )
        if unknown:
            raise self.fault(
                unknown[0],
                f"unknown keys: {', '.join(unknown)}",
                f"{layout} has none of them, and one that changes the arithmetic must not be ignored",
                "take them out if they say nothing about the computation",
            )

    def missing(self, key: str) -> CheckpointError:
        """An error about a `key` that is not there."""
        return self.fault(
            key,
            f"the drafter's configuration lacks {key}",
            "a guess would run and quietly accept almost nothing",
            f"add {key} to config.json as its authors publish it",
        )

    def fault(self, key: str, what: str, why: str, fix: str) -> CheckpointError:
        """An error located at `key` of this config."""
        return CheckpointError(what, where=f"{self.path / 'config.json'}: {key}", why=why, fix=fix)


def index(value: Any) -> int:
    """A whole number, 0 or more. Raises `ValueError` for anything else."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("a whole number, 0 or more, is needed")
    return value


def count(value: Any) -> int:
    """A whole number, 1 or more. Raises `ValueError` for anything else."""
    if index(value) == 0:
        raise ValueError("a whole number, 1 or more, is needed")
    return int(value)


def positive(value: Any) -> float:
    """A finite number above 0. Raises `ValueError` for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError("a finite number above 0 is needed")
    return float(value)


def flag(value: Any) -> bool:
    """True or false. Raises `ValueError` for anything else."""
    # bool("false") is True.
    if not isinstance(value, bool) and value not in (0, 1):
        raise ValueError("true or false is needed")
    return bool(value)


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object. Raises `ValueError` for anything else."""
    if not isinstance(value, Mapping):
        raise ValueError("a JSON object is needed")
    return value


def indices(value: Any) -> tuple[int, ...]:
    """A list of whole numbers, at least one. Raises `ValueError` for anything else."""
    if not isinstance(value, list) or not value:
        raise ValueError("a list of layer numbers is needed")
    return tuple(index(entry) for entry in value)
