"""The attention benchmark runs."""

from __future__ import annotations

import json

import attention
import pytest


def test_it_times_every_form(capsys):
    attention.main(["--positions", "16", "--rows", "1,2", "--rounds", "1", "--json"])
    table = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["position"], row["rows"]) for row in table] == [(16, 1), (16, 2)]
    assert all(row[form] > 0 for row in table for form in attention.FORMS)


@pytest.mark.parametrize("words", [["--rows", "x"], ["--rows", "0"], ["--rounds", "0"], ["--positions", ""]])
def test_what_is_no_number_of_rows_or_rounds_is_refused(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        attention.main(words)
    assert stopped.value.code == 2
    assert words[0].strip("-") in capsys.readouterr().err


def test_a_position_that_is_too_near_the_start_is_refused(capsys):
    with pytest.raises(SystemExit):
        attention.main(["--positions", "16", "--rows", "64"])
    assert "twice the rows" in capsys.readouterr().err
