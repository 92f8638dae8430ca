"""`train` on a tiny target: what it prints, what a second run does, and that nothing a user needs is out of reach."""

from __future__ import annotations

import dataclasses
import inspect

import models
import pytest

from dflash_compile.cli.commands import train
from dflash_compile.train.options import TrainOptions

SHORT = [
    "--response-tokens",
    "300",
    "--response-limit",
    "16",
    "--text-tokens",
    "0",
    "--held-out",
    "4",
    "--sequences",
    "2",
    "--anchors",
    "4",
]
SHAPE = ["--layers", "1", "--block", "4", "--taps", "0,2", "--loss-vocabulary", "64"]
LEFT_TO_THE_RECIPE = {"warm_up", "clip", "weight_decay", "full_share", "checkpoint_seconds"}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return models.write_target(tmp_path_factory.mktemp("target"), "llama", max_position_embeddings=1024)


def test_a_run_reports_what_it_made_and_a_second_one_that_nothing_was_left(cli, target, tmp_path):
    command = ["train", str(target), "-o", str(tmp_path / "drafter"), *SHORT, *SHAPE, "--steps", "2", "-q"]
    first = cli(*command, "--json").document
    assert (first["steps"], len(first["by_position"])) == (2, 3)
    assert first["prompts_left_out"] > 0, "in a vocabulary of single letters the longer documents do not fit"
    assert first["curve"] == str(tmp_path / "drafter" / "curve.png")
    assert (tmp_path / "drafter.work" / "curve.png").is_file()
    assert cli(*command).code == 2
    again = cli(*command, "--force")
    assert again.code == 0
    assert "no step was left" in again.out
    assert f"τ {first['tau']:.3f}" in again.out
    assert str(tmp_path / "drafter" / "curve.png") in again.out
    start = [
        "train",
        str(target),
        "-o",
        str(tmp_path / "next"),
        *SHORT,
        "--from",
        str(tmp_path / "drafter"),
        "--loss-vocabulary",
        "64",
        "--steps",
        "1",
        "-q",
    ]
    assert cli(*start, "--json").document["steps"] == 1
    assert cli(*start[:-3], "--layers", "2", "--force").code == 3


@pytest.mark.parametrize("taps", ["a", "1,,2", "1;2", "0,3"])
def test_taps_that_are_none_are_a_usage_error(cli, target, tmp_path, taps):
    result = cli("train", str(target), "-o", str(tmp_path / "drafter"), "--taps", taps)
    assert result.code == 2
    assert "--taps" in result.err
    assert not list(tmp_path.iterdir())


def test_every_training_option_is_a_flag_or_the_recipes_own():
    fields = {field.name for field in dataclasses.fields(TrainOptions)}
    assert fields - set(inspect.signature(train.command).parameters) == LEFT_TO_THE_RECIPE
