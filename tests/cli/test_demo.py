"""The demo's judgement: what it calls lossless, how it counts, and what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import dflash_compile.cli.demo.compare as comparing
from dflash_compile.cli.bench.totals import Totals
from dflash_compile.cli.commands.demo import as_dict, verdict
from dflash_compile.cli.demo.compare import Comparison, PromptResult, compare
from dflash_compile.cli.demo.prompts import PROMPTS, DemoPrompt
from dflash_compile.train.prompts.library import CODE_TEMPLATES, DOCUMENT_TEMPLATES
from dflash_compile.train.prompts.templates import SLOTS, TEMPLATES

SIDES = ("blocks", "default", "plain")
FEW = (DemoPrompt("a", "first prompt"), DemoPrompt("b", "second prompt"))


@dataclass
class FakeSession:
    """Answers every prompt with five tokens; `answers` may say otherwise per (prompt, side, turn)."""

    answers: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ("drums nearby",)
    manifest = SimpleNamespace(pairing=SimpleNamespace(block=6))

    def generate(self, prompt, *, max_new_tokens, draft, block, lookup, on_token):
        assert block in (None, 6)
        assert lookup is None, "every side looks up what its session sees fit: plain decoding nothing"
        side = ("default" if block is None else "blocks") if draft else "plain"
        turn = self.calls.count((prompt, side))
        self.calls.append((prompt, side))
        times = self.seconds.get(side, [1.0])
        self.statistics = SimpleNamespace(
            decode_seconds=times[turn % len(times)], cycles={"blocks": 2, "default": 3, "plain": 4}[side]
        )
        for token in self.answers.get((prompt, side, turn), [1, 2, 3, 4, 5])[:max_new_tokens]:
            on_token(token)
            yield f"{token} "


def quiet(*_):
    pass


def test_sides_take_turns_after_a_warm_up_of_all():
    session = FakeSession()
    compare(session, FEW, 8, 2, quiet)
    first, second = FEW[0].text, FEW[1].text
    forth, back = ["blocks", "default", "plain"], ["plain", "default", "blocks"]
    assert session.calls[:3] == [(first, side) for side in forth]
    assert session.calls[3:9] == [(first, side) for side in (*forth, *back)]
    assert session.calls[9:] == [(second, side) for side in (*forth, *back)]


def test_figures_come_from_the_median_of_each_side():
    session = FakeSession(seconds={"blocks": [7.0], "default": [9.0, 1.0, 1.0, 5.0], "plain": [9.0, 3.0, 3.0, 8.0]})
    total = compare(session, FEW[:1], 8, 3, quiet).total
    assert (total.seconds, total.baseline_seconds) == (1.0, 3.0)
    assert total.as_dict() == {
        "tau": 2.0,
        "tokens_per_second": 4.0,
        "baseline_tokens_per_second": 4 / 3,
        "speedup": 3.0,
        "tokens": 5,
    }


def test_totals_weigh_every_token_alike():
    long, short = Totals(101, 100, 25, 1.0, 3.0), Totals(11, 10, 10, 1.0, 1.0)
    assert (long + short).tau == 110 / 35
    assert (long + short).speedup == 2.0
    assert Totals().as_dict()["speedup"] == 0.0


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("other", [[1, 2, 3, 4], [1, 2, 3, 4, 6], [1, 2, 3, 4, 5, 6]])
def test_one_other_token_in_any_run_is_not_lossless(side, turn, other):
    session = FakeSession({(FEW[1].text, side, turn): other})
    comparison = compare(session, FEW, 8, 2, quiet)
    assert not comparison.lossless
    assert [result.identical for result in comparison.results] == [True, False]
    assert verdict(comparison).startswith("NOT LOSSLESS")
    assert "(b)" in verdict(comparison)


def _comparison(seconds: float, identical: bool = True) -> Comparison:
    return Comparison((PromptResult(FEW[0], "text", identical, Totals(11, 10, 5, seconds, 1.0)),))


def test_the_verdict_says_when_drafting_does_not_help():
    assert "does not help" in verdict(_comparison(seconds=1.25))
    assert "0.80×" in verdict(_comparison(seconds=1.25))
    assert "2.00×" in verdict(_comparison(seconds=0.5))


@pytest.fixture
def demo(cli, monkeypatch):
    """The command on a comparison made up beforehand."""
    from contextlib import nullcontext

    import dflash_compile.cli.demo.bundle as bundle
    import dflash_compile.runtime as runtime

    def run(comparison, *arguments):
        monkeypatch.setattr(bundle, "ensure_bundle", lambda *_: True)
        monkeypatch.setattr(runtime, "load", lambda *_, **__: nullcontext(FakeSession()))
        monkeypatch.setattr(comparing, "compare", lambda *_: comparison)
        return cli("demo", *arguments)

    return run


@pytest.mark.parametrize(("identical", "code"), [(True, 0), (False, 1)])
def test_the_document_and_exit_code(demo, identical, code):
    result = demo(_comparison(0.5, identical), "--json")
    assert result.code == code
    kinds = {
        "lossless": bool,
        "tau": float,
        "tokens_per_second": float,
        "baseline_tokens_per_second": float,
        "speedup": float,
        "tokens": int,
    }
    assert {name: type(result.document[name]) for name in kinds} == kinds
    assert result.document["lossless"] is identical
    assert result.document == {
        "schema": "dflash-compile.demo/1",
        "bundle": "artifacts/bundles/smollm2-135m",
        "built": True,
        "notes": ["drums nearby"],
        **as_dict(_comparison(0.5, identical)),
    }


def test_people_see_a_row_per_prompt_and_the_verdict_last(demo):
    result = demo(_comparison(0.5))
    assert re.search(r"^\s*a\s+11\s+2\.00\s+20\.0\s+10\.0\s+2\.00×\s+yes", result.out, re.MULTILINE)
    assert result.out.splitlines()[-1] == verdict(_comparison(0.5))


def _as_pattern(template: str) -> re.Pattern[str]:
    """What a training template can become: every slot stands for anything."""
    return re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)), re.DOTALL)


def test_prompts_are_none_the_drafter_trained_on():
    templates = [
        *(text for group in TEMPLATES.values() for text in group),
        *DOCUMENT_TEMPLATES,
        *CODE_TEMPLATES,
    ]
    for prompt in PROMPTS:
        assert not [template for template in templates if _as_pattern(template).fullmatch(prompt.text)], prompt.kind
        phrases = [phrase for slot in ("topic", "task", "skill", "animal", "product", "pair") for phrase in SLOTS[slot]]
        assert not [
            phrase for phrase in phrases if re.search(rf"\b{re.escape(phrase)}\b", prompt.text, re.IGNORECASE)
        ], prompt.kind


def test_prompts_are_of_different_kinds():
    assert len(PROMPTS) >= 6
    assert len({prompt.kind for prompt in PROMPTS}) == len(PROMPTS) == len({prompt.text for prompt in PROMPTS})
