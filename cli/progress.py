"""Progress of long steps: a bar on a terminal, otherwise a line per step and a sign of life in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Protocol, TextIO

HEARTBEAT_SECONDS = 20.0


class Progress(Protocol):
    """What library code calls: the step under way, and how much of it is done where that is known."""

    def __call__(self, step: str, done: int = 0, total: int = 0) -> None: ...


@contextlib.contextmanager
def show_progress(stream: TextIO) -> Iterator[Progress]:
    """A `Progress` that shows itself on `stream` until the block ends."""
    with _bar(stream) if stream.isatty() else _lines(stream, HEARTBEAT_SECONDS) as report:
        yield report


@contextlib.contextmanager
def _bar(stream: TextIO) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(file=stream)) as bars:
        current: dict[str, int] = {}

        def report(step: str, done: int = 0, total: int = 0) -> None:
            if step not in current:
                for task in current.values():
                    bars.stop_task(task)  # type: ignore[arg-type]
                current[step] = bars.add_task(step)
            bars.update(current[step], completed=done, total=total or None)  # type: ignore[arg-type]

        yield report


@contextlib.contextmanager
def _lines(stream: TextIO, heartbeat: float) -> Iterator[Progress]:
    start = time.monotonic()
    step_now, ended = "", threading.Event()

    def line(text: str) -> None:
        stream.write(f"[{time.monotonic() - start:6.1f} s] {text}\n")
        stream.flush()

    def report(step: str, done: int = 0, total: int = 0) -> None:
        nonlocal step_now
        if step != step_now:
            step_now = step
            line(step)

    def sign_of_life() -> None:
        while not ended.wait(heartbeat):
            if step_now:
                line(f"still: {step_now}")

    watcher = threading.Thread(target=sign_of_life, daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        ended.set()
        watcher.join()
