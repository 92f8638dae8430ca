"""Draws: the argmax of logit and noise over the whole vocabulary, distributed as the softmax, errors by name."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_compile.runtime.errors import BundleError, UsageError
from dflash_compile.runtime.sampling.noise import gumbel
from dflash_compile.runtime.sampling.parameters import GREEDY, Sampling
from dflash_compile.runtime.sampling.sampler import Sampler


def one_draw(row: np.ndarray, sampling: Sampling, prompt: int = 1) -> int:
    return Sampler(sampling, [0] * prompt, [], len(row)).draw(row)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, (1 << 64) - 1), spread=st.floats(0.01, 12), temperature=st.floats(0.05, 5))
def test_shortcuts_change_no_draw(seed, spread, temperature):
    row = (np.random.default_rng(seed & 0xFFFF).standard_normal(4001) * spread).astype(np.float32)
    sums = (row / np.float32(temperature)) + gumbel(seed, 3, np.arange(len(row)))
    assert one_draw(row, Sampling(temperature=temperature, seed=seed), prompt=3) == int(sums.argmax())


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.8}, {"top_k": 3}, {"min_p": 0.2}], ids=str)
def test_draws_are_distributed_as_the_processed_softmax(parameters):
    row = np.array([0.1, 2.0, -1.0, 1.2, 0.7, -3.0, 1.9, 0.0], np.float32)
    draws = [one_draw(row, Sampling(temperature=0.9, seed=seed, **parameters)) for seed in range(4000)]
    scores = row / 0.9
    order = np.argsort(-scores)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    before = np.cumsum(chances[order]) - chances[order]
    stay = {
        "top_p": set(order[before < parameters.get("top_p", 1)]),
        "top_k": set(order[: parameters.get("top_k", 8)]),
        "min_p": {token for token in range(8) if chances[token] >= parameters.get("min_p", 0) * chances.max()},
    }
    left = set.intersection(*stay.values())
    wanted = np.array([chances[token] if token in left else 0 for token in range(8)])
    wanted *= len(draws) / wanted.sum()
    found = np.bincount(draws, minlength=8)
    assert found[wanted == 0].sum() == 0
    likely = wanted > 0
    assert ((found - wanted)[likely] ** 2 / wanted[likely]).sum() < 26  # of at most 7 degrees, one in two thousand


def test_a_seed_is_drawn_anew_and_told():
    seeds = {Sampler(Sampling(temperature=1.0), [1], [], 8).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < 1 << 64 for seed in seeds)


def test_no_token_left_and_numbers_that_are_none():
    row = np.zeros(4, np.float32)
    ban = Sampling(temperature=1.0, logit_bias=dict.fromkeys(range(4), -inf))
    with pytest.raises(UsageError, match="forbid every token"):
        one_draw(row, ban)
    for wrong in (np.full(4, nan, np.float32), np.array([0, inf, 0, 0], np.float32)):
        with pytest.raises(BundleError, match="not finite"):
            one_draw(wrong, Sampling(temperature=1.0, top_p=0.9))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": nan},
        {"temperature": inf},
        {"temperature": True},
        {"temperature": "1"},
        {"temperature": 1e-7},
        {"temperature": 10**400},
        {"repetition_penalty": 10**400},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": nan},
        {"min_p": -0.1},
        {"min_p": 2},
        {"seed": -1},
        {"seed": 1 << 64},
        {"seed": True},
        {"repetition_penalty": 0},
        {"repetition_penalty": inf},
        {"presence_penalty": nan},
        {"frequency_penalty": inf},
        {"logit_bias": [1]},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: inf}},
        {"logit_bias": {"1": 1.0}},
        {"bad_words_ids": [1]},
        {"bad_words_ids": [[]]},
        {"bad_words_ids": [["a"]]},
        {"bad_words_ids": "ab"},
        {"min_new_tokens": -1},
    ],
    ids=str,
)
def test_values_that_mean_nothing_are_refused_by_name(wrong):
    with pytest.raises(UsageError) as caught:
        Sampling(**wrong)
    assert next(iter(wrong)) in str(caught.value)


@pytest.mark.parametrize("parameters", [{"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}, {}], ids=str)
def test_the_coldest_draws_are_the_largest_logit(parameters):
    row = np.array([20.0, 39.99, 31.0, 40.0, 25.0], np.float32)
    assert one_draw(row, Sampling(temperature=1e-6, seed=4, **parameters)) == 3


def test_numbers_of_numpy_are_numbers():
    assert Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(7)).temperature == 0.5


def test_which_parameters_change_anything():
    assert GREEDY.plain
    assert GREEDY.changed() == {}
    assert Sampling(top_p=0.5, seed=3).plain, "at temperature 0 they mean nothing"
    assert not Sampling(temperature=0.1).plain
    assert not Sampling(min_new_tokens=1).plain
    assert Sampling(temperature=0.1, seed=3).changed() == {"temperature": 0.1, "seed": 3}
