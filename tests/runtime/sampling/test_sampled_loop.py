"""Sampled answers through the loop: a function of prompt, parameters and seed, whoever drafts, at any width."""

from __future__ import annotations

import itertools
import random
import zlib
from collections import Counter

import numpy as np
import pytest
from fakes import VOCAB, FakeDrafter, FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import CyclePlan, FixedWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.sampling.parameters import Sampling
from dflash_compile.runtime.sampling.sampler import Sampler
from dflash_compile.runtime.statistics import Recorder

BLOCK, CONTEXT = 8, 90


def logits(tokens) -> np.ndarray:
    """The fake model's: depend on every token before."""
    return np.random.default_rng(zlib.crc32(bytes(tokens))).standard_normal(VOCAB).astype(np.float32) * 2


class LogitsTarget(FakeTarget):
    """Gives logits of the rows that it was last asked for."""

    reports_logits = True

    def _prefill_impl(self, tokens, rows, position):
        self._rows_of = [position + rows]
        return super()._prefill_impl(tokens, rows, position)

    def _verify_impl(self, block, position, keep):
        self._rows_of = [position + row + 1 for row in range(len(block))]
        return super()._verify_impl(block, position, keep)

    def _logits_impl(self, row):
        return logits(self.cache[: self._rows_of[row]])


class Adversary(FakeDrafter):
    """Proposes what `guess(known)` says, row after row."""

    reports_confidence = False

    def __init__(self, guess) -> None:
        super().__init__(lambda _: True, CONTEXT, BLOCK, 16)
        self.guess = guess

    def _draft_impl(self, anchor, position, width):
        known = [*self.cache[:position], anchor]
        self.cache[position : position + width] = [99] * width
        proposals: list[int] = []
        for _ in range(width - 1):
            proposals.append(self.guess([*known, *proposals]))
        return proposals


class RandomWidths:
    def __init__(self, seed) -> None:
        self.noise = random.Random(seed)

    def prefilled(self, rows, seconds): ...

    def plan(self, most, match):
        width = self.noise.randint(1, most)
        return CyclePlan(width, width > 1 and self.noise.random() < 0.7)

    def observe(self, plan, accepted, seconds, verify_seconds): ...

    def note_lookup(self, match, known, accepted): ...


def answer(prompt, sampling, guess=None, controller=None, most=40, eos=(), lookup=False):
    target = LogitsTarget(CONTEXT, 2, 16)
    request = Request(prompt, most, draft=guess is not None, lookup=lookup, sampling=sampling)
    record = Recorder(BLOCK)
    engines = Engines(target, Adversary(guess or (lambda known: 0)))
    tokens = list(run(engines, request, plan_limits(request, target, eos), controller or FixedWidth(BLOCK), record))
    return tokens, record.snapshot()


def reference(prompt, sampling, count, eos=()):
    """One row after the other, no engine at all."""
    sampler, tokens = Sampler(sampling, prompt, eos, VOCAB), list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(sampler.draw(logits(tokens)))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


SETTINGS = [
    Sampling(temperature=0.7, top_p=0.95, seed=11),
    Sampling(temperature=1.0, seed=0),
    Sampling(temperature=1.5, top_k=3, seed=(1 << 64) - 1),
    Sampling(temperature=0.9, min_p=0.1, repetition_penalty=1.4, frequency_penalty=0.2, seed=5),
    Sampling(temperature=1.0, logit_bias={2: 3.0, 3: float("-inf")}, bad_words_ids=[[4], [2, 2]], seed=6),
    Sampling(temperature=1.0, min_new_tokens=9, presence_penalty=0.4, seed=7),
    Sampling(repetition_penalty=1.3, frequency_penalty=0.5),
]
PROMPT = [1, 5, 2, 2, 7]


def oracle(sampling):
    """The very token that is drawn next: always right."""

    def guess(known):
        return reference(PROMPT, sampling, len(known) - len(PROMPT) + 1)[-1]

    return guess


def adversaries(sampling):
    right = oracle(sampling)
    return {
        "always right": right,
        "never right": lambda known: (right(known) + 1) % VOCAB,
        "impossible": lambda known: 3,
        "end token": lambda known: 10,
        "argmax": lambda known: int(logits(known).argmax()),
        "least likely": lambda known: int(logits(known).argmin()),
    }


@pytest.mark.parametrize("sampling", SETTINGS, ids=lambda sampling: "-".join(sampling.changed()))
@pytest.mark.parametrize("kind", ["always right", "never right", "impossible", "end token", "argmax", "least likely"])
def test_no_drafter_changes_the_answer(sampling, kind):
    wanted = reference(PROMPT, sampling, 40, eos=(10,))
    plain, plain_statistics = answer(PROMPT, sampling, eos=(10,))
    tokens, statistics = answer(PROMPT, sampling, adversaries(sampling)[kind], eos=(10,))
    assert tokens == plain == wanted
    assert statistics.finish == plain_statistics.finish
    assert statistics.seed == plain_statistics.seed == (sampling.seed if sampling.temperature else None)
    if kind == "always right" and len(tokens) > BLOCK:
        assert statistics.accepted == sum(statistics.offered_at), "every proposal was the draw"
    if kind == "never right":
        assert statistics.accepted == 0


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30),
    seed=st.integers(0, (1 << 64) - 1),
    temperature=st.floats(0.1, 3),
    widths=st.integers(0, 99),
    lookup=st.booleans(),
)
def test_neither_widths_nor_look_ups_change_it(prompt, seed, temperature, widths, lookup):
    sampling = Sampling(temperature=temperature, seed=seed)
    noise = random.Random(widths)
    guess = lambda known: int(logits(known).argmax()) if noise.random() < 0.6 else noise.randrange(VOCAB)  # noqa: E731
    tokens, _ = answer(prompt, sampling, guess, RandomWidths(widths), lookup=lookup)
    assert tokens == reference(prompt, sampling, 40)


@pytest.mark.parametrize("kind", ["argmax", "least likely"])
def test_blocks_are_distributed_as_the_model_says(kind):
    """The joint chances of three tokens, enumerated; a wrong rule can have right chances token by token."""
    prompt, count, top = [1, 5], 4000, Sampling(temperature=0.8, top_k=3)
    guess = adversaries(top)[kind]
    found = Counter(
        tuple(answer(prompt, Sampling(temperature=0.8, top_k=3, seed=seed), guess, most=3)[0]) for seed in range(count)
    )

    def chances(tokens):
        scores = logits(tokens) / 0.8
        stay = np.argsort(-scores)[:3]
        weights = np.exp(scores[stay] - scores.max())
        return dict(zip(map(int, stay), weights / weights.sum(), strict=True))

    wanted = {}
    for first, p in chances(prompt).items():
        for second, q in chances([*prompt, first]).items():
            for third, r in chances([*prompt, first, second]).items():
                wanted[first, second, third] = p * q * r * count
    assert set(found) <= set(wanted)
    rare = sum(value for value in wanted.values() if value < 5)
    statistic = sum((found[key] - value) ** 2 / value for key, value in wanted.items() if value >= 5)
    statistic += (sum(found[key] for key, value in wanted.items() if value < 5) - rare) ** 2 / max(rare, 1)
    degrees = len(list(itertools.filterfalse(lambda value: value < 5, wanted.values())))
    assert statistic < degrees + 4.5 * (2 * degrees) ** 0.5
