"""Opening a target or a drafter, whatever layout it is in.

Only headers and text are read; weights are read when asked for.
"""

from __future__ import annotations

from pathlib import Path

from .checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from .checkpoints.references import locate
from .registry import the_one_for


def open_target(reference: str | Path) -> TargetCheckpoint:
    """The target at `reference`: a transformers directory, a GGUF file, or the name `smollm2-135m`.

    Raises `UsageError` when there is nothing there and `CheckpointError` when it cannot be used as it is.
    """
    path = locate(reference)
    checkpoint: TargetCheckpoint = the_one_for(f"{__package__}.targets", path, "target").open_checkpoint(path)
    return checkpoint


def open_drafter(reference: str | Path) -> DrafterCheckpoint:
    """The DFlash drafter in the directory `reference`.

    Raises `UsageError` when there is nothing there and `CheckpointError` when it cannot be used as it is.
    """
    path = locate(reference)
    checkpoint: DrafterCheckpoint = the_one_for(f"{__package__}.drafters", path, "drafter").open_checkpoint(path)
    return checkpoint
