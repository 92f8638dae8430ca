"""The suite of long prompts: of the length it claims, each prompt on its own, none padded."""

from __future__ import annotations

import itertools
import re

import pytest
from suites import FOLDER, suite, word_runs

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.text import load_tokenizer
from dflash_compile.runtime.chat import ChatTemplate

SHORTEST, LONGEST = 1500, 1750
"""tokens of SmolLM2, chat template included"""
FILES = sorted((FOLDER / "long").iterdir())


def test_files_are_numbered_from_one() -> None:
    assert len(FILES) >= 20
    for number, file in enumerate(FILES, 1):
        assert re.fullmatch(rf"{number:02}(-[a-z]+)+\.txt", file.name), file.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_whitespace_is_clean(file) -> None:
    text = file.read_bytes().decode("utf-8")
    assert text.strip() + "\n" == text
    assert not re.search(r"[ \t]\n|[\t\r]|\n{4}", text)


def test_no_two_prompts_share_a_run_of_words() -> None:
    runs = [set(word_runs(prompt)) for prompt in suite("long")]
    shared = {(FILES[a].name, FILES[b].name): runs[a] & runs[b] for a, b in itertools.combinations(range(len(runs)), 2)}
    assert not {pair: common for pair, common in shared.items() if common}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_prompt_is_padded_by_repeating_itself(file) -> None:
    # Records of a log or a schema repeat a few words by nature; a repeated paragraph would be several per cent.
    runs = word_runs(file.read_text(encoding="utf-8"))
    assert len(set(runs)) >= 0.99 * len(runs)


@pytest.mark.slow
def test_every_prompt_has_the_length_the_suite_is_named_for() -> None:
    target = open_target("smollm2-135m")
    assert target.text.chat_template is not None
    template = ChatTemplate(target.text.chat_template, bos_token=target.text.bos_token, eos_token=target.text.eos_token)
    tokenizer = load_tokenizer(target.text, "")
    rendered = [template.render([{"role": "user", "content": prompt}]) for prompt in suite("long")]
    counts = {
        file.name: len(tokenizer.encode(text, add_special_tokens=False).ids)
        for file, text in zip(FILES, rendered, strict=True)
    }
    assert not {name: count for name, count in counts.items() if not SHORTEST <= count <= LONGEST}
