"""The recipe end to end on a target that has something to say: its own answers, its features, soft labels; τ rises far
above chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaForCausalLM

from dflash_compile.train.compute import choose_compute
from dflash_compile.train.data import Corpus
from dflash_compile.train.evaluate import walk
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.generation import BatchedGenerator
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.request import Request
from dflash_compile.train.teacher import Teacher
from dflash_compile.train.trainer import Trainer
from dflash_compile.train.warm_start import warm_start

from .tiny import HIDDEN, TAPS, VOCAB, drafter, target

BLOCK, WORDS, LETTERS, KEYS, ANSWER, SEQUENCES = 5, 8, 4, 3, 40, 160
OPTIONS = TrainOptions(
    layers=2,
    block=BLOCK,
    steps=250,
    sequences=4,
    anchors=16,
    learning_rate=4e-3,
    loss_vocabulary=VOCAB,
    held_out=8,
    evaluate_every=1000,
)
FIRST, LEAST, CHANCE = 1.4, 2.5, 1.8
"""τ of the untrained drafter at most, of the trained one at least, and of one that knows only which token follows which
at most"""


def _language() -> list[list[int]]:
    """Words of few letters, so that a letter alone does not tell the next."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(20, 26, (LETTERS,), generator=generator).tolist() for _ in range(WORDS)]


def _sentences(count: int, generator: torch.Generator) -> torch.Tensor:
    """int64 [count, 9 + ANSWER]: four tokens of noise, a key, a first word, and the answer, in which each word is `key`
    places after the last.
    """
    words = torch.tensor(_language())
    noise = torch.randint(60, VOCAB, (count, 4), generator=generator)
    key = torch.randint(1, KEYS + 1, (count, 1), generator=generator)
    places = torch.randint(WORDS, (count, 1), generator=generator) + key * torch.arange(1 + ANSWER // LETTERS)
    return torch.cat([noise, 10 + key, words[places % WORDS].flatten(1)], 1)


PROMPT = 5 + LETTERS


@pytest.fixture(scope="module")
def speaker() -> LlamaForCausalLM:
    """A target that has learnt the language."""
    model = target().train()
    generator = torch.Generator().manual_seed(1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    for _ in range(200):
        sentences = _sentences(32, generator)
        logits = model(sentences).logits
        answers = logits[:, PROMPT - 1 : -1], sentences[:, PROMPT:]
        F.cross_entropy(answers[0].flatten(0, 1), answers[1].flatten()).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert (answers[0].argmax(-1) == answers[1]).float().mean() > 0.95, "the target itself did not learn"
    return model.eval().requires_grad_(False)


def _corpus(speaker: LlamaForCausalLM, folder: Path) -> Corpus:
    """Its own greedy answers, with features."""
    store = FeatureStore(folder, len(TAPS) * HIDDEN, TAPS, "tiny")
    generator = BatchedGenerator(speaker, TAPS, frozenset(), slots=16, length=64)
    prompts = _sentences(SEQUENCES, torch.Generator().manual_seed(2))[:, :PROMPT].tolist()
    requests = (Request(tuple(prompt), ANSWER) for prompt in prompts)
    generator.run(
        requests, lambda sequence: store.append(sequence.tokens, sequence.features, len(sequence.request.prompt))
    )
    speaker.set_attn_implementation("sdpa")
    return Corpus([store], OPTIONS.held_out)


def _chain(corpus: Corpus) -> float:
    """τ of guessing, four times over, the token that most often follows the last one."""
    follows: dict[int, Counter[int]] = defaultdict(Counter)
    for item in corpus.train:
        for last, following in pairwise(corpus.triple(item)[0].tolist()):
            follows[last][following] += 1
    best = {token: counts.most_common(1)[0][0] for token, counts in follows.items()}
    outcomes = []
    for item in corpus.test:
        tokens, _, prompt = corpus.triple(item)
        accepted = []
        for anchor in range(prompt, len(tokens) - 1):
            guess, right = int(tokens[anchor]), 0
            for token in tokens[anchor + 1 : anchor + BLOCK].tolist():
                guess = best.get(guess, -1)
                if guess != token:
                    break
                right += 1
            accepted.append(right)
        outcomes.append(walk(torch.tensor(accepted), BLOCK))
    return sum(outcome.tokens for outcome in outcomes) / sum(outcome.cycles for outcome in outcomes)


@pytest.mark.slow
def test_a_short_run_learns_what_the_target_will_say(speaker: LlamaForCausalLM, tmp_path: Path) -> None:
    corpus = _corpus(speaker, tmp_path / "features")
    torch.manual_seed(0)
    model = drafter(block=BLOCK)
    warm_start(model, speaker, corpus.triple(corpus.train[0])[0].long()[None])
    compute = choose_compute("float32", torch.device("cpu"))
    weight = speaker.get_input_embeddings().weight
    teacher = Teacher(speaker, TAPS).on(compute)
    trainer = Trainer(model, weight, weight, corpus, OPTIONS, tmp_path / "state.safetensors", teacher, compute=compute)
    before = trainer.acceptance()
    trainer.run()
    after = trainer.acceptance()
    assert before.tau < FIRST
    assert _chain(corpus) < CHANCE
    assert after.tau > LEAST
    assert list(after.by_position) == sorted(after.by_position, reverse=True)
