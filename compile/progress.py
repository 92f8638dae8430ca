"""How long steps report where they are. Drawing it is the caller's business."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the step under way and, where it is known, how much of it is done."""

    def __call__(self, step: str, done: int = 0, total: int = 0) -> None: ...


def silent(step: str, done: int = 0, total: int = 0) -> None:
    """A `Progress` that tells nobody."""
