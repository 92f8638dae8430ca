"""Training prompts: repeatable, filled, and none of the held-out ones."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from dflash_compile.train.prompts import CODE_TEMPLATES, DOCUMENT_TEMPLATES, TEMPLATES, library_documents, library_functions, template_prompts

SUITES = Path(__file__).parents[2] / "benchmarks" / "prompts"
SHAPES = [
    re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(template)), re.DOTALL)
    for template in [*itertools.chain(*TEMPLATES.values()), *DOCUMENT_TEMPLATES, *CODE_TEMPLATES]
]


@pytest.mark.parametrize("suite", ["chat", "code", "reasoning", "tools"])
def test_held_out_suites_are_no_training_prompts(suite: str) -> None:
    lines = (SUITES / f"{suite}.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) >= 20
    trained = set(itertools.islice(template_prompts(0), 3000)) | set(itertools.islice(template_prompts(1), 3000))
    assert not trained & set(lines)
    assert not [line for line in lines for shape in SHAPES if shape.fullmatch(line)]


def test_the_same_seed_gives_the_same_prompts_and_every_slot_is_filled() -> None:
    first, again, other = (list(itertools.islice(template_prompts(seed), 300)) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    written = [prompt for prompt in first if not any(text[:200] in prompt for text in library_functions() + library_documents())]
    assert not [prompt for prompt in written if re.search(r"\{(?:topic|task|n|m|big|person|thing|place|language|text)\d?\}", prompt)]
