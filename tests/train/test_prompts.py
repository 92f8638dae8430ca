"""Training prompts: repeatable, filled, and none of the held-out ones."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterable
from functools import cache
from string import Formatter

import pytest
from suites import sentences, suite, suite_names, word_runs

from dflash_compile.train.prompts.library import (
    CODE_TEMPLATES,
    DOCUMENT_TEMPLATES,
    library_documents,
    library_files,
    library_functions,
)
from dflash_compile.train.prompts.mix import template_prompts
from dflash_compile.train.prompts.programming import programming_prompt
from dflash_compile.train.prompts.snippets import snippet_prompt
from dflash_compile.train.prompts.templates import SLOTS, TEMPLATES, templated
from dflash_compile.train.prompts.tools import TOOLS, tool_prompt
from dflash_compile.train.prompts.word_problems import word_problem

SUITES = ["chat", "code", "long", "reasoning", "tools"]
SHAPES = [
    re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)), re.DOTALL)
    for template in [*itertools.chain(*TEMPLATES.values()), *DOCUMENT_TEMPLATES, *CODE_TEMPLATES]
]


@cache
def trained() -> set[str]:
    """What two trainings are given first."""
    return {prompt for seed in (0, 1) for prompt in itertools.islice(template_prompts(seed), 3000)}


@cache
def trained_sentences() -> set[tuple[str, ...]]:
    """The sentences of those, and of all that they quote from."""
    return set().union(*map(sentences, itertools.chain(trained(), library_documents(), library_functions())))


def digest_of(prompts: Iterable[str]) -> str:
    """The first 12 digits of their SHA-256, each ended by a zero byte."""
    return hashlib.sha256("".join(f"{prompt}\0" for prompt in prompts).encode()).hexdigest()[:12]


def test_every_suite_is_checked() -> None:
    assert suite_names() == SUITES


@pytest.mark.parametrize("name", SUITES)
def test_held_out_suites_are_no_training_prompts(name: str) -> None:
    prompts = suite(name)
    assert len(prompts) == len(set(prompts)) >= 20
    assert not trained() & set(prompts)
    assert not [prompt for prompt in prompts for shape in SHAPES if shape.fullmatch(prompt.strip())]


@pytest.mark.parametrize("name", SUITES)
def test_held_out_suites_share_no_sentence_with_training_prompts(name: str) -> None:
    held_out = set().union(*map(sentences, suite(name)))
    assert held_out
    assert not held_out & trained_sentences()


def test_held_out_suites_quote_nothing_that_is_trained_on() -> None:
    held_out = {run for name in SUITES for prompt in suite(name) for run in word_runs(prompt)}
    sources = (file.read_text(encoding="utf-8", errors="ignore") for file in library_files())
    for text in itertools.chain(trained(), library_documents(), sources):
        assert not held_out.intersection(word_runs(text)), text[:200]


def test_the_same_seed_gives_the_same_prompts_and_every_slot_is_filled() -> None:
    first, again, other = (list(itertools.islice(template_prompts(seed), 300)) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    written = [
        prompt
        for prompt in first
        if not any(text[:200] in prompt for text in library_functions() + library_documents())
    ]
    names = "|".join(
        [*SLOTS, "n", "m", "big", "noun", "field", "text", "few", "ten", "xs", "x", "y", "a", "b", "c", "part"]
    )
    assert not [prompt for prompt in written if re.search(rf"\{{(?:{names})\d?\}}", prompt)]


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (tool_prompt, "02ba6bdcbdd5"),
        (word_problem, "46cd3671d516"),
        (snippet_prompt, "0181840effce"),
        (programming_prompt, "8b554f2e4404"),
    ],
)
def test_prompts_stay_those_that_shipped_drafters_were_trained_on(
    kind: Callable[[random.Random], str], digest: str
) -> None:
    rng = random.Random(11)
    assert digest_of(kind(rng) for _ in range(3000)) == digest


def test_templates_stay_those_that_shipped_drafters_were_trained_on() -> None:
    rng = random.Random(11)
    assert digest_of(templated(category, rng) for _ in range(1000) for category in TEMPLATES) == "f3cb931363e6"


def test_prompts_hardly_repeat() -> None:
    prompts = list(itertools.islice(template_prompts(5), 4000))
    assert len(set(prompts)) > 0.9 * len(prompts)


def test_a_tool_prompt_shows_a_tool_and_asks_for_all_of_its_parameters() -> None:
    for tool in TOOLS:
        names = {parameter.name for parameter in tool.parameters}
        for request in tool.requests:
            assert {field for _, field, _, _ in Formatter().parse(request) if field} == names, request
    rng = random.Random(0)
    shown = [
        sum(re.search(rf"\b{tool.name}\b", prompt) is not None for tool in TOOLS)
        for prompt in (tool_prompt(rng) for _ in range(200))
    ]
    assert set(shown) == {1, 2, 3}


@pytest.mark.parametrize("fill", [word_problem, snippet_prompt, programming_prompt])
def test_every_form_of_prompts_that_are_put_together_can_be_filled(fill: Callable[[random.Random], str]) -> None:
    """Forms with a slot that nobody fills fail, and over many draws every form comes."""
    rng = random.Random(1)
    assert len({fill(rng) for _ in range(2000)}) > 900
