"""How far a whole run has come, across its phases."""

from __future__ import annotations

from dataclasses import dataclass

from .trainer import TrainEvent


@dataclass(frozen=True)
class TrainProgress:
    """Where a run is: `phase` is "plain text", "responses" or "training"; `done` of `total` in the phase's own unit."""

    phase: str
    done: float
    total: float
    detail: str
    event: TrainEvent | None = None
