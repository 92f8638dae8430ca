"""The parameters a model class needs, found by building it without memory, and a check that a checkpoint has exactly
those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dflash_compile.runtime.errors import CheckpointError

from ..parameter_names import HEAD

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from ..families import Family

TOLERATED = (".rotary_emb.inv_freq",)
"""buffers old checkpoints stored and the model computes itself"""
SHOWN = 6


def parameter_shapes(family: Family, config: PreTrainedConfig, where: str = "") -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of `family`'s causal language model of `config`; a tied head is left out.

    Raises `CheckpointError` for a configuration that transformers cannot build a model of.
    """
    return shapes_of(built_without_memory(family, config, where), config)


def built_without_memory(family: Family, config: PreTrainedConfig, where: str = "") -> Any:
    """`family`'s causal language model of `config` on torch's meta device. Raises as `parameter_shapes` does."""
    try:
        with torch.device("meta"):
            return family.build(config, torch.float32)  # of the dtype in the file only the weights' own counts
    except CheckpointError:
        raise
    except Exception as error:  # model classes trip over bad values in as many ways as there are values
        raise CheckpointError(
            "transformers cannot build a model of this configuration",
            where=where,
            why=f"{type(error).__name__}: {error}",
            fix="take the configuration from the model's original repository",
        ) from error


def shapes_of(model: Any, config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter of `model`; a tied head is left out."""
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        shapes.pop(HEAD, None)
    return shapes


def check_shapes(
    wanted: Mapping[str, tuple[int | None, ...]], found: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Raise `CheckpointError` listing every missing, surplus and mis-shaped tensor.

    None in a shape matches any size.
    """
    surplus = [name for name in found if name not in wanted and not name.endswith(TOLERATED)]
    missing = [name for name in wanted if name not in found]
    wrong = [
        f"{name} is {list(found[name])}, not {_show(shape)}"
        for name, shape in wanted.items()
        if name in found and not _fits(shape, found[name])
    ]
    lists = [
        _list(label, group)
        for label, group in (("missing", missing), ("surplus", surplus), ("of the wrong shape", wrong))
        if group
    ]
    if lists:
        raise CheckpointError(
            "the weights do not match the configuration",
            where=where,
            why="; ".join(lists),
            fix="check that config and weights are of the same model and revision, whole",
        )


def _fits(wanted: tuple[int | None, ...], found: tuple[int, ...]) -> bool:
    return len(wanted) == len(found) and all(size in (None, real) for size, real in zip(wanted, found, strict=True))


def _show(shape: tuple[int | None, ...]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"


def _list(label: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {label}: {', '.join(names[:SHOWN])}{more}"
