"""Training prompts: repeatable, filled, and none of the held-out ones."""

from __future__ import annotations

import itertools
import re
from functools import cache

import pytest
from suites import sentences, suite, suite_names, word_runs

from dflash_compile.train.prompts import (
    CODE_TEMPLATES,
    DOCUMENT_TEMPLATES,
    TEMPLATES,
    library_documents,
    library_files,
    library_functions,
    template_prompts,
)

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
    written = [prompt for prompt in first if not any(text[:200] in prompt for text in library_functions() + library_documents())]
    assert not [prompt for prompt in written if re.search(r"\{(?:topic|task|n|m|big|person|thing|place|language|text)\d?\}", prompt)]
