"""Progress of long steps: a bar on a terminal, otherwise a line per step and a sign of life in between."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import TaskID

HEARTBEAT_SECONDS = 20.0


class ProgressDisplay(Protocol):
    """Shows progress, called as library code does: the step under way, how much of it is done where that is known, and
    how it goes.
    """

    def __call__(self, step: str, done: float = 0, total: float = 0, detail: str = "") -> None: ...


@contextlib.contextmanager
def show_progress(stream: TextIO) -> Iterator[ProgressDisplay]:
    """A `ProgressDisplay` that shows itself on `stream` until the block ends."""
    with _bar(stream) if stream.isatty() else _lines(stream, HEARTBEAT_SECONDS) as report:
        yield report


@contextlib.contextmanager
def _bar(stream: TextIO) -> Iterator[ProgressDisplay]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[detail]}"),
    )
    with Bars(*columns, console=Console(file=stream)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: float = 0, total: float = 0, detail: str = "") -> None:
            if step not in tasks:
                for task in tasks.values():
                    bars.stop_task(task)
                tasks[step] = bars.add_task(step, detail="")
            bars.update(tasks[step], completed=done, total=total or None, detail=detail)

        yield report


@contextlib.contextmanager
def _lines(stream: TextIO, heartbeat: float) -> Iterator[ProgressDisplay]:
    start = time.monotonic()
    current, state, ended = "", "", threading.Event()

    def line(text: str) -> None:
        stream.write(f"[{time.monotonic() - start:6.1f} s] {text}\n")
        stream.flush()

    def report(step: str, done: float = 0, total: float = 0, detail: str = "") -> None:
        nonlocal current, state
        state = " ".join(filter(None, (f"{done / total:.0%}" if total else "", detail)))
        if step != current:
            current = step
            line(step)

    def signs_of_life() -> None:
        while not ended.wait(heartbeat):
            if current:
                line(f"still: {current} {state}".rstrip())

    watcher = threading.Thread(target=signs_of_life, daemon=True)
    watcher.start()
    try:
        yield report
    finally:
        ended.set()
        watcher.join()
