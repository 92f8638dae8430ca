"""Training raises τ, and a resumed run is the run that was interrupted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dflash_compile.runtime.errors import UsageError
from dflash_compile.train.data import Corpus
from dflash_compile.train.evaluate import evaluate
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.trainer import Trainer
from dflash_compile.train.warm_start import warm_start

from .tiny import HIDDEN, TAPS, VOCAB, drafter, target

OPTIONS = TrainOptions(
    layers=2,
    block=5,
    steps=60,
    sequences=4,
    anchors=32,
    learning_rate=6e-3,
    loss_vocabulary=VOCAB,
    held_out=8,
    evaluate_every=1000,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Random tokens whose features know the next three, and nothing else does.

    The context of an anchor ends one token before it, so exactly two proposals can be right: τ tends to 3 and cannot
    pass it but by chance.
    """
    store = FeatureStore(tmp_path_factory.mktemp("features"), len(TAPS) * HIDDEN, TAPS, "tiny")
    generator = torch.Generator().manual_seed(0)
    embedding = target().model.embed_tokens.weight.detach()
    for _ in range(96):
        tokens = torch.randint(8, 38, (49,), generator=generator)
        features = torch.cat([embedding[tokens[k : k + 46]] for k in (1, 2, 3)], -1)
        store.append(tokens[:46].tolist(), features, 6)
    return Corpus([store], OPTIONS.held_out)


def _trainer(corpus: Corpus, state: Path, options: TrainOptions = OPTIONS) -> Trainer:
    model = drafter(block=5)
    weight = target().model.embed_tokens.weight.detach()
    return Trainer(model, weight, weight, corpus, options, state)


def test_held_out_sequences_are_never_trained_on(corpus: Corpus) -> None:
    assert len(corpus.test) == 12
    assert not {e.start for _, e in corpus.train} & {e.start for _, e in corpus.test}


def test_training_raises_tau_to_what_the_features_know_and_no_further(corpus: Corpus, tmp_path: Path) -> None:
    trainer = _trainer(corpus, tmp_path / "state.safetensors", replace(OPTIONS, steps=120))
    before = trainer.acceptance()
    trainer.run()
    after = trainer.acceptance()
    assert before.tau < 1.2
    assert 2.0 < after.tau < 3.2
    assert after.by_position[2] < 0.1
    swapped = [(t, f.roll(HIDDEN, dims=1), p) for t, f, p in trainer.held_out]
    late = [(t, f.roll(1, dims=0), p) for t, f, p in trainer.held_out]
    for wrong in (swapped, late):
        assert (
            evaluate(trainer.model, trainer.embedding, trainer.low_head, wrong, 5, trainer.compute.dtype).tau
            < after.tau - 0.5
        )


def test_a_resumed_run_equals_an_uninterrupted_one(corpus: Corpus, tmp_path: Path) -> None:
    whole = _trainer(corpus, tmp_path / "whole.safetensors", replace(OPTIONS, steps=12))
    whole.run()
    parts = _trainer(corpus, tmp_path / "parts.safetensors", replace(OPTIONS, steps=12))

    def interrupt(event: object) -> None:
        if parts.clock.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parts.run(interrupt)
    resumed = _trainer(corpus, tmp_path / "parts.safetensors", replace(OPTIONS, steps=12))
    assert resumed.clock.step == 5
    resumed.run()
    for (name, a), (_, b) in zip(whole.model.named_parameters(), resumed.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_warm_start_takes_the_last_layers(corpus: Corpus) -> None:
    model, source = drafter(), target()
    tokens, _, _ = corpus.triple(corpus.train[0])
    warm_start(model, source, tokens.long()[None])
    assert torch.equal(model.layers[1].mlp.up_proj.weight, source.model.layers[-1].mlp.up_proj.weight)
    assert torch.equal(model.layers[0].self_attn.q_proj.weight, source.model.layers[-2].self_attn.q_proj.weight)
    with torch.no_grad():
        norms = source.model(tokens.long()[None], output_hidden_states=True).hidden_states[-2]
        keys = source.model.layers[-1].self_attn.k_proj(source.model.layers[-1].input_layernorm(norms))
    assert float(model.layers[1].self_attn.k_norm.weight.detach().mean()) == pytest.approx(
        float(keys.square().mean().sqrt()), rel=1e-3
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"block": 1},
        {"steps": 0},
        {"held_out": 1},
        {"minutes": 0.0},
        {"warm_up": 1.0},
        {"precision": "int3"},
        {"text_tokens": -1},
        {"soft_share": 1.5},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))) as caught:
        TrainOptions(**wrong)  # type: ignore[arg-type]
    assert caught.value.fix


def test_gamma_decides_which_proposals_count(corpus: Corpus, tmp_path: Path) -> None:
    """With a decay that leaves the first proposal alone, labels of the others change nothing."""

    def loss(gamma: float | None, spoiled: bool) -> float:
        trainer = _trainer(corpus, tmp_path / "none", replace(OPTIONS, gamma=gamma))
        batch = corpus.batch(0, 0, 4, 8, 5)
        if spoiled:
            batch.labels[..., 1:] = 3
        trainer.corpus = SimpleNamespace(batch=lambda *_: batch)  # type: ignore[assignment]
        return trainer.train_step()

    assert loss(0.01, spoiled=True) == pytest.approx(loss(0.01, spoiled=False), rel=1e-5)
    assert loss(None, spoiled=True) != pytest.approx(loss(None, spoiled=False), rel=1e-2)
