"""The profile of a cycle on a bundle of a few kilobytes: every role and width is there, and the engines are as they
were.
"""

from __future__ import annotations

import json
import sys

import profile_cycle
from tiny import BLOCK, EXACT, write_bundle

from dflash_compile.runtime import load


def test_every_role_and_the_host(tmp_path, monkeypatch, capsys):
    bundle = write_bundle(tmp_path / "bundle")
    monkeypatch.setattr(
        sys,
        "argv",
        ["profile_cycle.py", str(bundle), str(bundle), "--position", "70", "--rounds", "2", "--tokens", "8", "--json"],
    )
    assert profile_cycle.main() == 0
    first, second = json.loads(capsys.readouterr().out)
    widths = range(2, BLOCK + 1)
    assert set(first["ms"]) == {
        "prompt",
        *(f"verify {width}" for width in {EXACT, *widths}),
        *(f"draft {width}" for width in widths),
        *("inject 1", "inject 2", "inject 4"),
    }
    assert all(value > 0 for value in first["ms"].values())
    assert first["ms"].keys() == second["ms"].keys()
    assert first["host"].keys() == profile_cycle.WAYS.keys()
    assert first["host"]["plain"]["tokens_a_cycle"] == 1


def test_measuring_the_host_leaves_the_session_as_it_was(tmp_path):
    with load(write_bundle(tmp_path / "bundle"), threads=1) as session:
        before = list(session.tokens("hi", max_new_tokens=12))
        found = profile_cycle.host(session, 12)
        assert found["host_us"] > 0
        assert 1 <= found["tokens_a_cycle"] <= BLOCK
        assert list(session.tokens("hi", max_new_tokens=12)) == before
