"""Penalties, bans and truncations against transformers' own processors, one by one and together, on random logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dflash_compile.runtime.sampling.history import History
from dflash_compile.runtime.sampling.parameters import Sampling
from dflash_compile.runtime.sampling.truncation import kept

VOCAB, EOS = 1500, (3, 9)
PROMPT = [5, 8, 3, 700, 8]
SETTINGS = [
    {"temperature": 0.7},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.3, "top_k": 40},
    {"temperature": 1.0, "top_k": VOCAB + 5},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 2.5, "top_p": 0.999},
    {"temperature": 0.3, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.02},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 0.8, "top_k": 100, "top_p": 0.7, "min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7, "temperature": 0.9, "top_p": 0.9},
    {"logit_bias": {4: 3.5, 700: -2.0, 8: float("-inf")}},
    {"bad_words_ids": [[7], [700, 8, 21], [8, 22], [5, 23]]},
    {"min_new_tokens": 4},
    {
        "temperature": 0.9,
        "top_k": 200,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "logit_bias": {1: 1.5},
        "bad_words_ids": [[22], [8, 40]],
        "min_new_tokens": 2,
    },
]


def theirs(given: dict) -> LogitsProcessorList:
    """As `GenerationMixin` puts them together, in its order."""
    chain = LogitsProcessorList()
    if "logit_bias" in given:
        chain.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in given["logit_bias"].items()]))
    if "repetition_penalty" in given:
        chain.append(RepetitionPenaltyLogitsProcessor(given["repetition_penalty"]))
    if "bad_words_ids" in given:
        chain.append(NoBadWordsLogitsProcessor(given["bad_words_ids"], eos_token_id=list(EOS)))
    if "min_new_tokens" in given:
        chain.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), given["min_new_tokens"], torch.tensor(EOS)))
    for name, warper in (
        ("temperature", TemperatureLogitsWarper),
        ("top_k", TopKLogitsWarper),
        ("top_p", TopPLogitsWarper),
        ("min_p", MinPLogitsWarper),
    ):
        if name in given:
            chain.append(warper(given[name]))
    return chain


@pytest.mark.parametrize("given", SETTINGS, ids=lambda given: "-".join(given))
@pytest.mark.parametrize("answer", [[], [700, 8], [8, 8, 44, 5, 700]], ids=["first", "second", "later"])
def test_scores_are_those_of_transformers(given, answer):
    random = np.random.default_rng(len(answer))
    sampling = Sampling(**given)
    history = History(sampling, PROMPT, EOS, VOCAB)
    for token in answer:
        history.append(token)
    ids = torch.tensor([[*PROMPT, *answer]])
    for _ in range(12):
        row = (random.standard_normal(VOCAB) * random.choice([0.5, 3, 6])).astype(np.float32)
        scores = history.edit(row)
        if sampling.temperature:
            scores = scores / np.float32(sampling.temperature)
            stay = kept(scores, sampling)
            if stay is not None:
                assert (np.diff(stay) > 0).all()
                left = np.full_like(scores, -np.inf)
                left[stay] = scores[stay]
                scores = left
        wanted = theirs(given)(ids, torch.from_numpy(row.copy())[None])[0].numpy()
        np.testing.assert_array_equal(np.isfinite(scores), np.isfinite(wanted))
        np.testing.assert_allclose(scores, wanted, rtol=1e-6)


def test_presence_and_frequency_count_the_answer_alone():
    history = History(Sampling(presence_penalty=0.5, frequency_penalty=0.25), PROMPT, EOS, VOCAB)
    for token in (5, 7, 7, 7):
        history.append(token)
    edited = history.edit(np.zeros(VOCAB, np.float32))
    assert {token: float(edited[token]) for token in (5, 7, 8)} == {5: -0.75, 7: -1.25, 8: 0.0}


def test_of_equal_tokens_at_the_edge_the_smaller_ids_stay():
    flat = np.zeros(100, np.float32)
    np.testing.assert_array_equal(kept(flat, Sampling(temperature=1.0, top_p=0.095)), np.arange(10))
    np.testing.assert_array_equal(kept(flat, Sampling(temperature=1.0, top_k=3)), np.arange(100))  # all share the place
