"""log.jsonl of a training run: one line a step, with τ and acceptance by position where they were measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .trainer import TrainEvent


@dataclass(frozen=True)
class LogEntry:
    """One step as it was logged."""

    step: int
    rows: int
    """block rows trained on so far"""
    loss: float
    tau: float | None = None
    by_position: tuple[float, ...] = ()
    """share of cycles whose k-th proposal was accepted, k = 1 .. block - 1; empty where it was not measured"""


class TrainLog:
    """Appends to a log; a line that an interrupted write left torn is closed first. A context manager."""

    def __init__(self, path: Path) -> None:
        torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = path.open("a")
        if torn:
            self._file.write("\n")

    def write(self, event: TrainEvent) -> None:
        """Log a step; flushed where it was evaluated, so that the curve can be read from the file."""
        entry: dict[str, object] = {
            "step": event.clock.step,
            "rows": event.clock.rows,
            "loss": event.loss,
            "learning_rate": event.learning_rate,
        }
        if event.acceptance is not None:
            entry |= {"tau": event.acceptance.tau, "by_position": list(event.acceptance.by_position)}
        self._file.write(json.dumps(entry) + "\n")
        if event.acceptance is not None:
            self._file.flush()

    def __enter__(self) -> TrainLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_log(path: Path) -> list[LogEntry]:
    """The run's steps in order. A resumed run repeats the steps after its last checkpoint: the later ones count.

    Torn lines are passed over.
    """
    entries: list[LogEntry] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            raw = json.loads(line)
            entry = LogEntry(
                int(raw["step"]),
                int(raw["rows"]),
                float(raw["loss"]),
                raw.get("tau"),
                tuple(raw.get("by_position", ())),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        while entries and entries[-1].step >= entry.step:
            entries.pop()
        entries.append(entry)
    return entries
