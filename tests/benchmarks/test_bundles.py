"""Bundles of a few kilobytes side by side: answers, calls and loads, and the engines are as they were."""

from __future__ import annotations

import json

import bundles
import pytest
from bundle import calls
from bundle.loading import WAYS
from tiny import BLOCK, EXACT, write_bundle

from dflash_compile.runtime import load


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bundles") / "bundle")


def rows_of(capsys, *words):
    code = bundles.main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_role_and_the_host(bundle, capsys):
    code, (first, second) = rows_of(capsys, "calls", bundle, bundle, "--position", 70, "--rounds", 2, "--tokens", 8)
    assert code == 0
    widths = range(2, BLOCK + 1)
    assert set(first["ms"]) == {
        "prompt",
        *(f"verify {width}" for width in {EXACT, *widths}),
        *(f"draft {width}" for width in widths),
        *("inject 1", "inject 2", "inject 4"),
    }
    assert all(value > 0 for value in first["ms"].values())
    assert first["ms"].keys() == second["ms"].keys()
    assert first["host"].keys() == calls.WAYS.keys()
    assert first["host"]["plain"]["tokens_a_cycle"] == 1


def test_measuring_the_host_leaves_the_session_as_it_was(bundle):
    with load(bundle, threads=1) as session:
        before = list(session.tokens("hi", max_new_tokens=12))
        found = calls.host(session, 12)
        assert found["host_us"] > 0
        assert 1 <= found["tokens_a_cycle"] <= BLOCK
        assert list(session.tokens("hi", max_new_tokens=12)) == before


def test_answers_by_width_against_plain_decoding(bundle, tmp_path, capsys):
    prompts = tmp_path / "mine.txt"
    prompts.write_text("abcabc\nfade\n", encoding="utf-8")
    words = ["answers", bundle, "--suite", prompts, "--max-new-tokens", 12, "--threads", 1]
    code, rows = rows_of(capsys, *words, "--width", 2, "--width", BLOCK)
    assert code == 0
    assert [(row["suite"], row["bundle"], row["width"]) for row in rows] == [
        ("mine", "bundle", width) for width in (2, BLOCK, 0)
    ]
    narrow, whole, plain = rows
    assert (plain["tau"], plain["plain_steps"], plain["draft_ms"], plain["accepted"]) == (1, 1, 0, [])
    assert 1 <= narrow["tau"] <= 2
    assert len(narrow["accepted"]) == 1
    assert whole["plain_steps"] == pytest.approx(whole["cycle_cpu_ms"] / plain["cycle_cpu_ms"], abs=0.01)
    with load(bundle, threads=1) as session:
        decoded = cycles = 0
        for prompt in ("abcabc", "fade"):
            decoded += len(list(session.tokens(prompt, max_new_tokens=12, block=BLOCK))) - 1
            cycles += session.statistics.cycles
    assert whole["tau"] == pytest.approx(decoded / cycles, abs=1e-3)


def test_different_answers_are_told(bundle, tmp_path, capsys, monkeypatch):
    prompts = tmp_path / "mine.txt"
    prompts.write_text("abcabc\n", encoding="utf-8")
    honest = bundles.answers.Variant.answer
    monkeypatch.setattr(
        bundles.answers.Variant, "answer", lambda self, *asked: [*honest(self, *asked), 5 if self.width else 6]
    )
    code, rows = rows_of(capsys, "answers", bundle, "--suite", prompts, "--max-new-tokens", 8, "--width", 2)
    assert code == 1
    assert len(rows) == 2


def test_loads_by_what_the_machine_keeps(bundle, tmp_path, capsys):
    code, rows = rows_of(capsys, "load", bundle, "--repeats", 1, "--fill", "--cache", tmp_path)
    assert code == 0
    assert [row["way"] for row in rows] == list(WAYS)
    for row in rows:
        assert row["seconds"] > 0
        assert row["peak"] >= row["resident"] > row["anonymous"] > 0
        assert row["resident, full"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_is_not_there_is_an_error_and_no_traceback(tmp_path, capsys):
    assert bundles.main(["calls", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
