"""How long steps report where they are and what they noticed. Showing it is the caller's business."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Note = Callable[[str], None]
"""called with a sentence for the user about something unusual that stops nothing"""


class Progress(Protocol):
    """Called with the step under way and, where it is known, how much of it is done."""

    def __call__(self, step: str, done: int = 0, total: int = 0) -> None: ...


def no_progress(step: str, done: int = 0, total: int = 0) -> None:
    """A `Progress` that tells nobody."""


def no_notes(text: str) -> None:
    """A `Note` that tells nobody."""
