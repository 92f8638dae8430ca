"""Opening a target or a drafter, whatever layout it is in.

Only headers and text are read; weights are read when asked for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from dflash_compile.runtime.errors import CheckpointError
from dflash_compile.runtime.foreign import foreign_errors

from .checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from .checkpoints.references import locate
from .registry import the_one_for


def open_target(reference: str | Path) -> TargetCheckpoint:
    """The target at `reference`: a transformers directory, a GGUF file, or the name `smollm2-135m`.

    Raises `UsageError` when there is nothing there and `CheckpointError` when it cannot be used as it is.
    """
    path = locate(reference)
    with reading(path):
        checkpoint: TargetCheckpoint = the_one_for(f"{__package__}.targets", path, "target").open_checkpoint(path)
    return checkpoint


def open_drafter(reference: str | Path) -> DrafterCheckpoint:
    """The DFlash drafter in the directory `reference`.

    Raises `UsageError` when there is nothing there and `CheckpointError` when it cannot be used as it is.
    """
    path = locate(reference)
    with reading(path):
        checkpoint: DrafterCheckpoint = the_one_for(f"{__package__}.drafters", path, "drafter").open_checkpoint(path)
    return checkpoint


def reading(path: Path) -> AbstractContextManager[None]:
    """Whatever reading the checkpoint at `path` raises, in libraries too, becomes `CheckpointError`."""
    return foreign_errors(
        CheckpointError,
        "the checkpoint cannot be read",
        where=str(path),
        fix="copy or download it again, whole; where it is the published one, report this",
    )
