"""The log survives interruptions, and the curve is drawn from what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dflash_compile.train.curve import draw_curve, interval_losses, write_curve
from dflash_compile.train.evaluate import Acceptance
from dflash_compile.train.log import LogEntry, TrainLog, read_log
from dflash_compile.train.state import Clock
from dflash_compile.train.trainer import TrainEvent


def _event(step: int, loss: float, evaluated: bool = False) -> TrainEvent:
    return TrainEvent(
        step / 10, Clock(step, 1.0, step * 100), loss, 1e-3, Acceptance(30, 20, (8, 2)) if evaluated else None
    )


def test_a_resumed_run_counts_the_later_of_repeated_steps_and_skips_torn_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with TrainLog(path) as log:
        for step in (1, 2, 3):
            log.write(_event(step, 9.0))
    with path.open("a") as file:
        file.write('{"step": 4, "ro')
    with TrainLog(path) as log:
        log.write(_event(3, 2.0, evaluated=True))
        log.write(_event(4, 1.0))
    assert [(entry.step, entry.loss, entry.tau) for entry in read_log(path)] == [
        (1, 9.0, None),
        (2, 9.0, None),
        (3, 2.0, 1.5),
        (4, 1.0, None),
    ]
    assert read_log(path)[2].by_position == (0.4, 0.1)
    assert read_log(tmp_path / "none") == []


def test_an_evaluated_step_is_in_the_file_at_once(tmp_path: Path) -> None:
    with TrainLog(tmp_path / "log.jsonl") as log:
        log.write(_event(1, 5.0, evaluated=True))
        assert [entry.step for entry in read_log(tmp_path / "log.jsonl")] == [1]


@pytest.mark.parametrize("line", ["3", "[]", '{"step": 1}', '{"step": null, "rows": 1, "loss": 2}', "{"])
def test_a_line_that_says_nothing_is_no_step(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text(line + "\n")
    assert read_log(tmp_path / "log.jsonl") == []


def _entries(taus: list[float | None]) -> list[LogEntry]:
    return [
        LogEntry(i + 1, (i + 1) * 100, 6.0 - i, tau, () if tau is None else (tau / 2, tau / 4))
        for i, tau in enumerate(taus)
    ]


def test_the_loss_of_an_evaluation_is_the_mean_since_the_one_before() -> None:
    assert interval_losses(_entries([None, 1.0, None, None, 1.5, None])) == [5.5, 3.0]


def test_a_curve_shows_its_figures(tmp_path: Path) -> None:
    """Pictures of equal runs are equal, of other runs others; a block that changed on the way is drawn as far as it
    goes.
    """
    run = _entries([None, 1.0, None, 1.5])
    picture = draw_curve(run, "a")
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture == draw_curve(run, "a")
    assert picture != draw_curve(_entries([None, 1.0, None, 1.4]), "a")
    assert draw_curve([*run, LogEntry(9, 900, 1.0, 1.6, (0.5, 0.2, 0.1))], "a")


def test_nothing_is_drawn_without_an_evaluation_or_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, picture = tmp_path / "log.jsonl", tmp_path / "curve.png"
    log.write_text(json.dumps({"step": 1, "rows": 10, "loss": 3.0}) + "\n")
    assert write_curve(log, picture, "a") is None
    with log.open("a") as file:
        file.write(json.dumps({"step": 2, "rows": 20, "loss": 2.0, "tau": 1.2, "by_position": [0.2]}) + "\n")
    assert write_curve(log, picture, "a") == picture
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["curve.png", "log.jsonl"]
    picture.unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_curve(log, picture, "a") is None
    assert not picture.exists()
