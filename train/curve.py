"""The training curve as a picture: loss, τ and acceptance by position against the block rows trained."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

from .log import LogEntry, read_log

DOTS_PER_INCH = 110


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_curve(entries: Sequence[LogEntry], title: str) -> bytes:
    """A PNG of the run. `entries` in order, at least one of them evaluated. Needs matplotlib."""
    from matplotlib.figure import Figure

    measured = [entry for entry in entries if entry.tau is not None]
    rows = [entry.rows / 1000 for entry in measured]
    figure = Figure(figsize=(8, 9), layout="constrained")
    loss, tau, positions = figure.subplots(3, 1, sharex=True)
    loss.plot(
        [entry.rows / 1000 for entry in entries],
        [entry.loss for entry in entries],
        color="0.8",
        linewidth=0.8,
        label="each step",
    )
    loss.plot(rows, interval_losses(entries), marker="o", markersize=3, label="mean since the last evaluation")
    loss.set_ylabel("training loss (nats)")
    tau.plot(rows, [entry.tau for entry in measured], marker="o", markersize=3, label="held-out answers")
    tau.set_ylabel("τ (tokens a cycle)")
    for k in range(max(len(entry.by_position) for entry in measured)):
        points = [(entry.rows / 1000, entry.by_position[k]) for entry in measured if k < len(entry.by_position)]
        positions.plot(
            [x for x, _ in points], [y for _, y in points], marker="o", markersize=3, label=f"proposal {k + 1}"
        )
    positions.set_ylabel("share of cycles accepted")
    positions.set_ylim(bottom=0)
    positions.set_xlabel("block rows trained (thousands)")
    for axes in (loss, tau, positions):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=DOTS_PER_INCH)
    return picture.getvalue()


def interval_losses(entries: Sequence[LogEntry]) -> list[float]:
    """For every evaluated entry, the mean loss of the steps since the one before it."""
    means, interval = [], []
    for entry in entries:
        interval.append(entry.loss)
        if entry.tau is not None:
            means.append(fmean(interval))
            interval = []
    return means


def write_curve(log: Path, output: Path, title: str) -> Path | None:
    """Draw the run in `log` to `output`, replaced when whole.

    None, and nothing written, where no step was evaluated or matplotlib is missing.
    """
    entries = read_log(log)
    if not can_draw() or not any(entry.tau is not None for entry in entries):
        return None
    partial = output.with_suffix(".partial")
    partial.write_bytes(draw_curve(entries, title))
    return partial.replace(output)
