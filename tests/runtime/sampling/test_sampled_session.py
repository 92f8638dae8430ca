"""Sampling a real bundle through its session: engines of ONNX Runtime, and those that cannot."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dflash_compile.runtime import Sampling, load
from dflash_compile.runtime.errors import IncompatibleError, UsageError
from dflash_compile.runtime.sampling.sampler import Sampler

WARM = Sampling(temperature=1.2, top_p=0.97, seed=42)
PROMPT = list(b"user: hi")


@pytest.fixture
def session(tiny_bundle):
    with load(tiny_bundle) as session:
        yield session


@pytest.mark.parametrize("sampling", [WARM, Sampling(temperature=3.0, seed=1), Sampling(repetition_penalty=1.5)])
@pytest.mark.parametrize("options", [{"block": 2}, {"block": 6}, {}, {"lookup": False}, {"lookup": True}], ids=str)
def test_drafting_changes_nothing(session, sampling, options):
    plain = list(session.tokens(PROMPT, draft=False, sampling=sampling, max_new_tokens=60))
    assert list(session.tokens(PROMPT, sampling=sampling, max_new_tokens=60, **options)) == plain
    assert plain != list(session.tokens(PROMPT, max_new_tokens=60)), "sampling must change something"


def test_the_logits_are_those_behind_the_choices(session):
    target = session.engines.target
    choice = target.prefill(PROMPT, 0)
    assert int(target.row_logits(0).argmax()) == choice
    with pytest.raises(UsageError, match="row 1"):
        target.row_logits(1)
    choices = target.verify([choice, 97, 98], len(PROMPT))
    assert [int(target.row_logits(row).argmax()) for row in range(3)] == list(choices)
    assert target.row_logits(0).dtype == np.float32


def test_each_token_is_drawn_from_its_own_row(session):
    tokens = list(session.tokens(PROMPT, sampling=WARM, max_new_tokens=20))
    sampler, target = Sampler(WARM, PROMPT, [256], session.engines.target.vocab), session.engines.target
    target.prefill(PROMPT, 0)
    for number, token in enumerate(tokens):
        assert sampler.draw(target.row_logits(0)) == token
        target.verify([token], len(PROMPT) + number)


def test_a_seed_gives_the_same_text_in_another_process(session, tiny_bundle):
    code = (
        "from dflash_compile.runtime import Sampling, load\n"
        f"with load({str(tiny_bundle)!r}) as session:\n"
        f"    print(list(session.tokens({PROMPT}, sampling={WARM!r}, max_new_tokens=30, draft=False)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(list(session.tokens(PROMPT, sampling=WARM, max_new_tokens=30)))


def test_without_a_seed_one_is_drawn_and_told(session):
    first = list(session.tokens(PROMPT, sampling=Sampling(temperature=2.0), max_new_tokens=40))
    seed = session.statistics.seed
    assert list(session.tokens(PROMPT, sampling=Sampling(temperature=2.0, seed=seed), max_new_tokens=40)) == first
    list(session.tokens(PROMPT, max_new_tokens=4))
    assert session.statistics.seed is None


def test_an_answer_does_not_end_too_early(session):
    wanted = Sampling(logit_bias={256: 100.0}, min_new_tokens=5)
    assert list(session.tokens(PROMPT, sampling=wanted, max_new_tokens=30))[5:] == [256]


def test_what_cannot_be_done_is_refused_before_the_first_piece(session, monkeypatch):
    with pytest.raises(UsageError, match="token 258"):
        session.generate("hi", sampling=Sampling(logit_bias={258: 1.0}))
    with pytest.raises(UsageError, match="sampling="):
        session.generate("hi", sampling={"temperature": 1.0})
    monkeypatch.setattr(type(session.engines.target), "reports_logits", False)
    with pytest.raises(IncompatibleError, match="temperature, seed"):
        session.generate("hi", sampling=Sampling(temperature=1.0, seed=3))
    assert list(session.tokens(PROMPT, sampling=Sampling(seed=3), max_new_tokens=3)), "greedy needs no logits"
