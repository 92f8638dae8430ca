"""`plan`: its document, its table, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_compile.cli.main import main
from dflash_compile.runtime.errors import ExitCode

CONFIGS = Path(__file__).parents[1] / "configs"
QWEN = [str(CONFIGS / "qwen3-8b.json"), str(CONFIGS / "qwen3-8b-dflash.json")]


def test_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *QWEN, "--context", "8192,131072", "--memory", "16GiB", "--json"]) == ExitCode.OK
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "dflash-compile.plan/1"
    assert [role["role"] for role in document["roles"]] == ["prefill", "decode", "verify", "inject", "draft"]
    totals = {(total["precision"], total["context"]): total for total in document["totals"]}
    assert totals["int8", 8192]["fits"] is True
    assert totals["fp32", 8192]["fits"] is False
    assert totals["int8", 131072]["bytes"] is None, "past what the model addresses"
    weights, needs = document["weights"][0], document["contexts"][0]
    parts = (
        weights["target"]
        + weights["drafter"]
        + needs["target_cache"]
        + needs["drafter_cache"]
        + needs["tables"]
        + document["buffers"]
    )
    assert totals["int8", 8192]["bytes"] == parts + (1 << 29)


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QWEN[0], "--context", "8192"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "8 key heads of 128" in out
    assert "this machine" in out
    assert "inject" not in out


@pytest.mark.parametrize(
    "options", [["--context", "many"], ["--context", "8192,-1"], ["--memory", "a lot"], ["--memory", "24"]]
)
def test_wrong_options(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QWEN[0], *options]) == ExitCode.USAGE
    assert options[0] in capsys.readouterr().err


def test_a_back_end_that_makes_no_estimate_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", QWEN[0], "--backend", "tensorrt"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "tensorrt has no estimate of memory" in said
    assert "onnxruntime" in said
    assert main(["plan", QWEN[0], "--backend", "abacus"]) == ExitCode.USAGE
    assert "unknown back-end 'abacus'" in capsys.readouterr().err
