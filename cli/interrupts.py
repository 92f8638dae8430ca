"""Signals that end the program. They are remembered, for libraries turn the exception into their own, or lose it."""

from __future__ import annotations

import signal
import sys
from types import FrameType

_received: list[int] = []


def watch(*names: str) -> None:
    """Let these signals unwind the program like Ctrl-C, so that staged files are removed and training is saved."""
    for name in names:
        number = getattr(signal, name, None)
        # Whoever ignores a signal means it, as `nohup` does SIGHUP.
        if number is not None and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _interrupt)


def received() -> bool:
    """Whether one came: then an error of any kind is what became of it."""
    return bool(_received)


def check() -> None:
    """Raises `KeyboardInterrupt` for one that came and was lost; not while the program unwinds already."""
    if _received and sys.exc_info()[0] is None:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt
