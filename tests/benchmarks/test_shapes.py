"""The shape search on a tiny target: every shape becomes a timed pair, and a second run repeats nothing."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import models
import pytest
from bundle.answers import Variant

from dflash_compile.runtime.statistics import Statistics

if TYPE_CHECKING:
    from dflash_compile.runtime.session import Session


@pytest.fixture(scope="module")
def shapes() -> ModuleType:
    return importlib.import_module("shapes")


@pytest.mark.slow
def test_every_shape_is_trained_built_and_timed_once(
    shapes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = models.write_target(tmp_path / "target", "llama", num_hidden_layers=4, max_position_embeddings=1024)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "a.txt").write_text("the quick brown fox\n")
    small = [
        "response_tokens=400",
        "response_limit=24",
        "text_tokens=200",
        "loss_vocabulary=64",
        "held_out=4",
        "sequences=2",
        "anchors=4",
    ]
    out = tmp_path / "out"
    command = [
        str(target),
        str(out),
        "--layers",
        "1",
        "--block",
        "3",
        "--block",
        "4",
        "--steps",
        "2",
        "--suite",
        str(tmp_path / "suite" / "a.txt"),
    ]
    command += ["--max-new-tokens", "12", "--json", *(word for value in small for word in ("--set", value))]
    assert shapes.main(command) == 0
    rows = json.loads(capsys.readouterr().out)["shapes"]
    assert [row["shape"] for row in rows] == [{"layers": 1, "block": block, "vocabulary": None} for block in (3, 4)]
    assert all(row["speedup"] > 0 and row["tau"] >= 1 for row in rows)
    assert [[block["width"] for block in row["widths"]] for row in rows] == [[2, 3], [2, 4]]
    stores = {(out / name / "work" / "features").resolve() for name in ("layers1-block3", "layers1-block4")}
    assert stores == {(out / "features").resolve()}, "all shapes learn from the same features"
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert shapes.main(command) == 0
    assert json.loads(capsys.readouterr().out)["shapes"] == rows
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times
    assert shapes.main([word if word != "2" else "3" for word in command]) == 2, (
        "a result of another budget is not taken for this one's"
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--set", "layer=3"], "no option layer"),
        (["--block", "1"], "block must be"),
        (["--set", "learning_rate=0"], "learning_rate must"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_is_written(
    shapes: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], says: str
) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    command = [
        "no target",
        str(tmp_path / "out"),
        "--layers",
        "1",
        "--block",
        "3",
        "--steps",
        "2",
        "--suite",
        str(tmp_path / "a.txt"),
    ]
    assert shapes.main([*command, *wrong]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_fastest_comes_first(shapes: ModuleType) -> None:
    plain = {"width": 0, "tau": 1.0, "cycle_cpu_ms": 10.0, "tokens_per_cpu_second": 100.0}
    block = {"width": 2, "tau": 1.4, "cycle_cpu_ms": 12.5, "tokens_per_cpu_second": 112.0}
    figures = {"held_out_tau": 1.4, "tau": 1.4, "best_width": 2, "plain": plain, "widths": [block], "lossless": True}
    rows = [
        {"shape": {"layers": n, "block": 4, "vocabulary": None}, "speedup": speedup, **figures}
        for n, speedup in ((1, 1.0), (2, 1.2), (3, 1.1))
    ]
    _, *lines = shapes.table(rows).splitlines()
    assert [line.split()[0] for line in lines] == ["2", "3", "1"]
    assert "1.25" in lines[0], "the cycle costs 1.25 plain ones"


def test_a_width_counts_all_tokens_and_the_median_answers_cost() -> None:
    def answer(tokens: int, cycles: int) -> Statistics:
        return Statistics(
            tokens + 1, tokens + 1, cycles, (cycles,), (tokens - cycles,), 0.0, 0.1, {"draft": 0.01}, None
        )

    variant = Variant(cast("Session", None), 2, [answer(30, 20), answer(20, 20), answer(10, 10)], [0.2, 0.4, 9.0])
    row = variant.row()
    assert {name: row[name] for name in ("width", "tau", "cycle_cpu_ms")} == {
        "width": 2,
        "tau": 1.2,
        "cycle_cpu_ms": 20,
    }
    assert row["tokens_per_cpu_second"] == 60
