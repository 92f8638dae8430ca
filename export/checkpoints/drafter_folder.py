"""A drafter's folder on disk: written whole or not at all, and what a training run leaves in its config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import BuildError, CheckpointError

from .files import section
from .safetensors_source import WHOLE
from .staging import check_output, staged

if TYPE_CHECKING:
    import torch

TRAINED_WITH = "trained_with"
"""config key under which a training run records the hashes of the target's vocabulary and chat template, and whether
prompts asked for thinking"""


def trained_with(config: Mapping[str, Any]) -> tuple[str | None, str | None, bool | None]:
    """(vocabulary hash, template hash, thinking) of what the drafter was trained with, where `config` records them.

    Raises `CheckpointError` for a `thinking` that is neither true nor false.
    """
    record = section(config.get(TRAINED_WITH))
    thinking = record.get("thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise CheckpointError(
            f"thinking cannot be {thinking!r}",
            where=f"config.json: {TRAINED_WITH}.thinking",
            why="it says whether the training prompts asked for thinking",
            fix="write true or false, or leave it out where it is not known",
        )
    return record.get("vocabulary_sha256"), record.get("template_sha256"), thinking


def refuse_existing(folder: Path, replace: bool) -> None:
    """Raise `UsageError` when there is a drafter at `folder` and `replace` is not set, or something else than one."""
    check_output(folder, replace, "drafter", "config.json")


def check_dtypes(tensors: Mapping[str, torch.Tensor], dtype: str) -> None:
    """Raise `CheckpointError` unless all of `tensors` are `dtype`, named as torch names it."""
    wrong = sorted(name for name, value in tensors.items() if str(value.dtype) != f"torch.{dtype}")
    if wrong:
        raise CheckpointError(
            f"{len(wrong)} tensors are not {dtype}",
            where="the drafter to be saved",
            why=", ".join(wrong[:3]),
            fix="cast them first",
        )


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], extra_files: Mapping[str, bytes]
) -> Path:
    """Write config.json, weights and `extra_files` (by plain name) to a folder beside `folder`, then put it in its
    place; returns `folder`.

    A folder already there is replaced. Raises `BuildError` when writing fails; then nothing is left behind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        with staged(folder, sum(tensor.nbytes for tensor in tensors.values()), "drafter") as stage:
            save_file(
                {name: tensors[name].contiguous() for name in sorted(tensors)}, stage / WHOLE, metadata={"format": "pt"}
            )
            (stage / "config.json").write_text(json.dumps(config, indent=2) + "\n")
            for name, content in extra_files.items():
                (stage / Path(name).name).write_bytes(content)
            (stage / WHOLE).chmod(0o644)
    except (OSError, SafetensorError) as error:
        raise BuildError(
            "the drafter could not be written",
            where=str(folder),
            why=str(error),
            fix="check free space and permissions; nothing was left behind",
        ) from error
    return folder
