"""The benchmark command on a bundle of a few kilobytes: its document, its report, and how it ends."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny import CONTEXT, edit_manifest, reduce_draft, write_bundle

import dflash_compile.cli.bench.report as reporting
from dflash_compile.artifacts import ROOT
from dflash_compile.cli.bench.baselines import baseline_names, find_baseline
from dflash_compile.cli.bench.schema import bench_schema
from dflash_compile.cli.bench.variants import BASELINE, BLOCKS, DFLASH, SessionVariant

FEW = ("--max-new-tokens", "8", "--repeats", "2")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("bench") / "bundle")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    """A suite whose name must not become markup."""
    file = tmp_path_factory.mktemp("prompts") / "a<b>&c.txt"
    file.write_text("hello abc\n\nbye\nagain\n", encoding="utf-8")
    return str(file)


@pytest.fixture
def bench(cli, bundle, prompts):
    return lambda *words: cli("bench", str(bundle), "--suite", prompts, *FEW, *words)


def test_the_document_is_what_the_schema_says(bench):
    jsonschema = pytest.importorskip("jsonschema")
    result = bench("--prompts", "2", "--context", "16,48,96", "--json")
    assert result.code == 0, result.err
    document, schema = result.document, json.loads(bench_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    for broken in (
        {**document, "surprise": 1},
        {**document, "suites": [{}]},
        {name: value for name, value in document.items() if name != "schema"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)
    suite = document["suites"][0]
    assert (document["lossless"], suite["lossless"], suite["differing"], suite["prompts"]) == (True, True, [], 2)
    assert set(suite["sides"]) == {DFLASH, BLOCKS, BASELINE}
    assert [it["context"] for it in document["contexts"]] == [16, 48, 96]
    assert [it["prompt_tokens"] for it in document["contexts"]] == [16, 48, CONTEXT - 8 - 6]
    assert any("context 96" in note for note in document["notes"])
    assert all(width["width"] in (2, 4, 6) for it in document["contexts"] for width in it["widths"])


def test_what_the_drafter_can_propose_is_said(cli, prompts, tmp_path):
    pytest.importorskip("matplotlib")
    bundle, page = write_bundle(tmp_path / "bundle"), tmp_path / "report.html"
    reduce_draft(bundle, [*b"faxbdz"])
    result = cli("bench", str(bundle), "--suite", prompts, "--prompts", "1", *FEW, "--report", str(page), "--json")
    assert result.code == 0, result.err
    assert (result.document["bundle"]["draft_vocabulary"], result.document["bundle"]["refine"]) == (6, 0)
    assert "6 tokens proposed, context" in page.read_text(encoding="utf-8")


def test_checked_in_schema_is_current():
    checked_in = (ROOT / "bench.schema.json").read_text(encoding="utf-8")
    assert checked_in == bench_schema(), "run: python -m dflash_compile.cli.bench.schema > artifacts/bench.schema.json"


def test_people_see_tables_and_the_verdict_last(bench):
    result = bench("--context", "16")
    assert result.code == 0
    first = [line.split()[0] for line in result.out.splitlines() if line.split()]
    assert {"suite", "accepted", "memory", "context", "a<b>&c"} <= set(first)
    assert result.out.splitlines()[-1].startswith("Lossless")


@pytest.mark.parametrize("wrong", ["drafted", "plain"])
def test_one_other_token_of_any_side_fails_the_check(bench, monkeypatch, wrong):
    honest = SessionVariant.run

    def run(side, prompt, max_new_tokens):
        answer = honest(side, prompt, max_new_tokens)
        lies = side.draft == (wrong == "drafted") and prompt == "bye"
        return dataclasses.replace(answer, tokens=(*answer.tokens[:-1], answer.tokens[-1] + 1)) if lies else answer

    monkeypatch.setattr(SessionVariant, "run", run)
    result = bench("--json")
    assert result.code == 1
    assert (result.document["lossless"], result.document["suites"][0]["differing"]) == (False, [1])
    assert bench().out.splitlines()[-1].startswith("NOT LOSSLESS")


def _empty(folder: Path) -> str:
    (folder / "empty.txt").write_text("\n \n", encoding="utf-8")
    return str(folder / "empty.txt")


def _no_text(folder: Path) -> str:
    (folder / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    return str(folder / "bytes.txt")


def _too_long(folder: Path) -> str:
    (folder / "long.txt").write_text("a" * 2 * CONTEXT, encoding="utf-8")
    return str(folder / "long.txt")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (lambda _: ("--suite", "reasonin"), "did you mean `reasoning`?"),
        (lambda _: ("--suite", "nowhere.txt"), "unknown suite"),
        (lambda folder: ("--suite", _empty(folder)), "without a prompt"),
        (lambda folder: ("--suite", _no_text(folder)), "UTF-8"),
        (lambda folder: ("--suite", _too_long(folder)), f"the bundle holds {CONTEXT}"),
        (lambda _: ("--baseline", "decod"), "did you mean `decode`?"),
        (lambda _: ("--context", "12x"), "128,512"),
        (lambda _: ("--context", "4"), "shortest"),
        (lambda _: ("--context", f"16,{CONTEXT + 1}"), "--max-context"),
        (lambda _: ("--context", "16", "--max-new-tokens", str(CONTEXT)), "leaves no room"),
        (lambda folder: ("--report", str(folder)), "folder"),
        (lambda folder: ("--report", str(folder / "no" / "report.html")), "not there"),
        (lambda _: ("--prompts", "0"), "--prompts"),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(cli, bundle, tmp_path, words, said):
    result = cli("bench", str(bundle), "--json", *words(tmp_path))
    assert (result.code, result.document["exit_code"]) == (2, 2)
    assert said in result.out


def test_prompts_that_do_not_fit_are_left_out_and_said(cli, bundle, tmp_path):
    suite = tmp_path / "mixed.txt"
    suite.write_text("short\n" + "a" * 2 * CONTEXT + "\n", encoding="utf-8")
    document = cli("bench", str(bundle), "--suite", str(suite), *FEW, "--json").document
    assert document["suites"][0]["prompts"] == 1
    assert any("mixed: 1 of 2 prompts" in note for note in document["notes"])


def test_a_damaged_bundle_is_found_before_anything_runs(cli, prompts, tmp_path):
    damaged = write_bundle(tmp_path / "bundle")
    edit_manifest(damaged, lambda document: document["files"].update({"target/target.onnx": "0" * 64}))
    assert cli("bench", str(damaged), "--suite", prompts).code == 1
    assert cli("bench", str(tmp_path / "nothing"), "--suite", prompts).code == 2


def test_look_ups_are_a_baseline_too(cli, bundle, prompts):
    result = cli("bench", str(bundle), "--suite", prompts, "--baseline", "lookup", *FEW, "--json")
    assert result.code == 0
    document = result.document
    assert document["lossless"]
    assert "look-ups, without the drafter" in document["settings"]["baseline_summary"]
    assert document["suites"][0]["sides"]["baseline"]["role_ms_per_token"].keys() <= {"decode", "verify", "host"}
    assert 0 <= document["suites"][0]["looked_up"] < 1


def test_every_baseline_file_keeps_the_contract():
    assert {"decode", "lookup"} <= set(baseline_names())
    for name in baseline_names():
        assert find_baseline(name).SUMMARY
        assert callable(find_baseline(name).open_baseline)


class _Elements(HTMLParser):
    """What a page loads, what its ids are, and which elements it has."""

    LOADS = frozenset({"src", "srcset", "href", "xlink:href", "data", "poster", "action", "background"})

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in self.LOADS]
        self.ids += [value or "" for name, value in attrs if name == "id"]


def test_the_report_is_one_file_that_loads_nothing(bench, tmp_path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "report.html"
    file.write_text("an older one", encoding="utf-8")
    result = bench("--context", "16,32", "--report", str(file))
    assert result.code == 0, result.err
    text, page = file.read_text(encoding="utf-8"), _Elements()
    page.feed(text)
    page.close()
    assert [address for address in page.loaded if not address.startswith("#")] == []
    assert not {"script", "link", "iframe", "img", "object", "b"} & set(page.tags)
    assert page.tags.count("svg") == page.tags.count("figure") == 5
    assert not re.findall(r"url\((?!#)|@import|<!doctype (?!html>)|<\?xml", text, re.IGNORECASE)
    assert len(page.ids) == len(set(page.ids)), "charts share ids: one would be clipped by another's shapes"
    assert {address[1:] for address in page.loaded} | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "a&lt;b&gt;&amp;c" in text
    assert [it.name for it in tmp_path.iterdir()] == ["report.html"]


def test_a_report_that_cannot_be_written_leaves_the_old_one_and_loses_no_figure(bench, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    file = tmp_path / "report.html"
    file.write_text("an older one", encoding="utf-8")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    monkeypatch.setattr(reporting.os, "fdopen", full)
    result = bench("--report", str(file), "--json")
    assert (result.code, result.document["lossless"]) == (4, True)
    assert "the disk is full" in result.err
    assert [(it.name, it.read_text(encoding="utf-8")) for it in tmp_path.iterdir()] == [("report.html", "an older one")]


def test_only_a_report_needs_matplotlib(bench, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = bench("--report", str(tmp_path / "report.html"), "--json")
    assert refused.code == 3
    assert "dflash-compile[report]" in refused.document["fix"]
    assert bench("--prompts", "1").code == 0
