"""Plain text with features: what is stored is what the target sees."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dflash_compile.train.data import Corpus
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.raw_text import TAG, add_raw_text, library_texts, reader

from .tiny import HIDDEN, TAPS, VOCAB, target


def _tokenizer(text: str, **_: Any) -> SimpleNamespace:
    return SimpleNamespace(input_ids=[ord(c) % VOCAB for c in text])


def test_features_are_the_targets_and_texts_are_all_trained_on(tmp_path: Path) -> None:
    model = target()
    store = FeatureStore(tmp_path, len(TAPS) * HIDDEN, TAPS, "tiny")
    add_raw_text(store, reader(model, TAPS), _tokenizer, 600, seed=1, length=64)
    assert sum(e.length for e in store.entries) >= 600
    corpus = Corpus([store], held_out=2)
    assert not corpus.test
    tokens, features, prompt = corpus.triple(corpus.train[1])
    with torch.no_grad():
        states = model(tokens.long()[None], output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer + 1][0] for layer in TAPS], -1)
    torch.testing.assert_close(features.float(), expected, atol=0.02, rtol=0.02)
    assert prompt == 1
    before = len(store.entries)
    add_raw_text(store, reader(model, TAPS), _tokenizer, 600, seed=1)
    assert len(store.entries) == before
    assert {e.tag for e in store.entries} == {TAG}


def test_texts_repeat_by_seed_only() -> None:
    first, again, other = (list(itertools.islice(library_texts(seed), 12)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
