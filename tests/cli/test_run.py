"""`run` on a session made up for the test: what goes where, and which options reach the library."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

import dflash_compile.runtime as runtime
from dflash_compile.runtime.sampling.parameters import GREEDY, Sampling
from dflash_compile.runtime.statistics import Statistics

STATISTICS = Statistics(
    prompt_tokens=7,
    tokens=9,
    cycles=4,
    offered_at=(4, 4, 0),
    accepted_at=(3, 1, 0),
    prefill_seconds=0.5,
    decode_seconds=2.0,
    seconds={"prefill": 0.4, "verify": 1.5},
    finish="eos",
)


class FakeSession:
    notes = ("this machine is a test",)
    statistics = STATISTICS
    verdict = "decoding plainly: for a test"

    def __init__(self, record):
        self.record = record

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.record["closed"] = True

    def generate(self, prompt, **options):
        self.record.update(prompt=prompt, **options)
        yield "Hel"
        yield "lo"


@pytest.fixture
def record(monkeypatch):
    """What the command asked of the library."""
    seen = {}

    def load(path, **options):
        seen.update(path=str(path), **options)
        return FakeSession(seen)

    monkeypatch.setattr(runtime, "load", load)
    return seen


def test_text_streams_to_standard_output_and_figures_to_standard_error(cli, record):
    result = cli("run", "some/bundle", "--prompt", "Hi")
    assert (result.code, result.out) == (0, "Hello\n")
    assert "note: this machine is a test" in result.err
    assert (
        "9 tokens, 4.0 tokens/s after 500 ms of prefill, τ 2.00 tokens per drafted cycle, 4 of 4 cycles drafted, ended"
        " by eos" in result.err
    )
    assert "[decoding plainly: for a test]" in result.err
    assert record["closed"]


def test_what_was_looked_up_is_told_apart(cli, record, monkeypatch):
    monkeypatch.setattr(
        FakeSession, "statistics", replace(STATISTICS, cycles=6, undrafted_tokens=3, looked_up=4, looked_up_accepted=1)
    )
    result = cli("run", "some/bundle", "--prompt", "Hi", "--json")
    assert (
        "τ 1.25 tokens per drafted cycle, 4 of 6 cycles drafted, 1 of 4 looked-up tokens right, ended by eos"
        in result.err
    )
    figures = result.document["statistics"]
    assert (figures["tau"], figures["undrafted_tau"], figures["looked_up"], figures["looked_up_accepted"]) == (
        1.25,
        1.5,
        4,
        1,
    )


def test_quiet_leaves_only_the_text(cli, record):
    result = cli("run", "some/bundle", "--prompt", "Hi", "-q")
    assert (result.out, result.err) == ("Hello\n", "")


def test_json_is_one_document_with_text_and_statistics(cli, record):
    document = cli("run", "some/bundle", "--prompt", "Hi", "--json").document
    assert document["text"] == "Hello"
    assert document["notes"] == ["this machine is a test"]
    assert document["statistics"]["tau"] == 2.0
    assert document["statistics"]["acceptance_by_position"] == [0.75, 0.25]
    assert document["statistics"]["seconds_by_role"] == {"prefill": 0.4, "verify": 1.5}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            [],
            {
                "prompt": "Hi",
                "draft": True,
                "lookup": None,
                "raw": False,
                "stop": (),
                "max_new_tokens": 512,
                "provider": "cpu",
                "threads": None,
            },
        ),
        (["--no-draft", "--raw", "--max-new-tokens", "3"], {"draft": False, "raw": True, "max_new_tokens": 3}),
        (["--no-draft", "--lookup"], {"draft": False, "lookup": True}),
        (["--no-lookup"], {"draft": True, "lookup": False}),
        (["--stop", "a", "--stop", "b"], {"stop": ["a", "b"]}),
        (
            ["--system", "Be brief."],
            {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]},
        ),
        (["--provider", "cuda", "--threads", "2"], {"provider": "cuda", "threads": 2}),
        (["--temperature", "0"], {"sampling": GREEDY}),
        (
            ["--temperature", "0.7", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.1", "--seed", "3"],
            {"sampling": Sampling(temperature=0.7, top_p=0.9, top_k=40, min_p=0.1, seed=3)},
        ),
        (
            ["--repetition-penalty", "1.1", "--presence-penalty", "1", "--frequency-penalty", "2"],
            {"sampling": Sampling(repetition_penalty=1.1, presence_penalty=1.0, frequency_penalty=2.0)},
        ),
        (["--min-new-tokens", "4"], {"sampling": Sampling(min_new_tokens=4)}),
    ],
)
def test_options_reach_the_library(cli, record, arguments, expected):
    assert cli("run", "some/bundle", "--prompt", "Hi", *arguments).code == 0
    assert {name: record[name] for name in expected} == expected
    assert record["path"] == "some/bundle"


def test_a_dash_reads_the_prompt_from_standard_input(cli, record, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from\nelsewhere"))
    cli("run", "some/bundle", "--prompt", "-")
    assert record["prompt"] == "from\nelsewhere"


def test_standard_input_that_is_no_utf8_is_a_usage_error(cli, record, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    result = cli("run", "some/bundle", "--prompt", "-", "--json")
    assert (result.code, result.document["where"], record) == (2, "standard input", {})


@pytest.mark.parametrize(
    "arguments", [["--system", "x", "--raw"], ["--provider", "tpu"], ["--max-new-tokens", "0"], ["--threads", "0"]]
)
def test_options_that_cannot_work_are_usage_errors(cli, record, arguments):
    assert cli("run", "some/bundle", "--prompt", "Hi", *arguments).code == 2
    assert record == {}


def test_no_bundle_is_a_usage_error_with_the_next_command(cli, tmp_path):
    missing, empty = cli("run", str(tmp_path / "none"), "--prompt", "Hi"), cli("run", str(tmp_path), "--prompt", "Hi")
    assert (missing.code, empty.code) == (2, 2)
    assert "dflash-compile build" in empty.err


def test_what_the_template_reads_is_json(cli, record):
    assert cli("run", "some/bundle", "--prompt", "Hi", "--chat-template-kwargs", '{"enable_thinking": false}').code == 0
    assert record["chat_template_kwargs"] == {"enable_thinking": False}
    for wrong in ("enable_thinking", "[1]"):
        result = cli("run", "some/bundle", "--prompt", "Hi", "--chat-template-kwargs", wrong)
        assert (result.code, "--chat-template-kwargs" in result.err) == (2, True)


def test_what_is_unusual_about_the_prompt_is_noted_before_the_text(cli, record, monkeypatch):
    def generate(self, prompt, **options):
        self.notes = (*self.notes, "the other mode")
        return iter(["Hello"])

    monkeypatch.setattr(FakeSession, "generate", generate)
    result = cli("run", "some/bundle", "--prompt", "Hi")
    assert [line for line in result.err.splitlines() if line.startswith("note: ")] == [
        "note: this machine is a test",
        "note: the other mode",
    ]
    assert cli("run", "some/bundle", "--prompt", "Hi", "--json").document["notes"] == [
        "this machine is a test",
        "the other mode",
    ]
