"""The compiled target, many slots at once: what transformers says alone, and at int8 what the bundle's own session
says.
"""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import torch

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.onnxruntime.batching import batched_target
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import IncompatibleError
from dflash_compile.runtime.loop import Limits, run
from dflash_compile.runtime.policy.controller import FixedWidth
from dflash_compile.runtime.request import Request as Decoding
from dflash_compile.runtime.statistics import Recorder
from dflash_compile.train.compiled_generation import CompiledGenerator
from dflash_compile.train.compiled_target import CompiledTarget
from dflash_compile.train.compute import choose_compute
from dflash_compile.train.features import FeatureStore
from dflash_compile.train.gathering import gather
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.raw_text import TAG
from dflash_compile.train.request import Request, Sequence

PROMPTS = [(5, 9, 33, 80), (7,), tuple(range(20, 61)), (90, 91, 92, 200, 17, 6, 6), (300, 4, 8)]
LIMIT, LENGTH = 14, 64


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_target(tmp_path_factory.mktemp("pair") / "target", "qwen3")


@pytest.fixture(scope="module")
def drafter(target: Path) -> Path:
    return models.write_drafter(target.parent / "drafter", target)


def bundle(target: Path, drafter: Path, precision: str) -> Path:
    return build(
        str(target),
        str(drafter),
        target.parent / precision,
        BuildOptions(precision=precision, context=LENGTH, force=True),
    )


def generator(path: Path, slots: int, stop: frozenset[int] = frozenset(), seed: int = 0) -> CompiledGenerator:
    folder = path / "target"
    target = CompiledTarget(batched_target(folder / "target.onnx"), folder, LENGTH, "tiny", threads=1)
    target.reserve(slots, LENGTH)
    return CompiledGenerator(target, stop, seed)


def answers(generator: CompiledGenerator, requests: list[Request]) -> dict[tuple[int, ...], Sequence]:
    done: dict[tuple[int, ...], Sequence] = {}
    generator.run(iter(requests), lambda sequence: done.__setitem__(sequence.request.prompt, sequence))
    return done


def test_every_slot_equals_transformers_alone(target: Path, drafter: Path) -> None:
    path = bundle(target, drafter, "fp32")
    model, taps = load_model(open_target(target)), load(path).manifest.pairing.taps
    done = answers(generator(path, slots=2), [Request(prompt, LIMIT) for prompt in PROMPTS])
    assert set(done) == set(PROMPTS)
    for prompt in PROMPTS:
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=LIMIT, do_sample=False, pad_token_id=0, eos_token_id=None
        )[0].tolist()
        assert done[prompt].tokens == expected
        with torch.no_grad():
            states = model(torch.tensor([expected]), output_hidden_states=True).hidden_states
        wanted = torch.cat([states[layer + 1] for layer in taps], -1)[0].to(torch.bfloat16)
        features = done[prompt].features
        torch.testing.assert_close(features[:-1], wanted[:-1], atol=1e-3, rtol=2**-7)
        assert (features[-1] == 0).all()


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_slots_say_what_the_bundle_says(target: Path, drafter: Path, precision: str) -> None:
    path = bundle(target, drafter, precision)
    engines = load(path).engines
    limits = Limits(LIMIT, "max_new_tokens", frozenset())
    done = answers(generator(path, slots=3), [Request(prompt, LIMIT) for prompt in PROMPTS])
    for prompt in PROMPTS:
        plain = list(run(engines, Decoding(prompt, LIMIT, draft=False), limits, FixedWidth(1), Recorder(1)))
        assert done[prompt].tokens[len(prompt) :] == plain


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_single_token_rounds_as_the_first_of_two(target: Path, drafter: Path, precision: str) -> None:
    """Alone it would take another kernel; in a bundle it never does."""
    folder = bundle(target, drafter, precision) / "target"
    engine = CompiledTarget(batched_target(folder / "target.onnx"), folder, LENGTH, "tiny", threads=1)
    engine.reserve(1, LENGTH)
    for token in range(4, 300, 37):
        (_, both), (_, alone) = engine.prefill(0, (token, 9)), engine.prefill(0, (token,))
        assert alone.shape == (1, engine.width)
        assert (alone[0] == both[0]).all()


def test_answers_end_at_a_stop_token_and_slots_go_on(target: Path, drafter: Path) -> None:
    path = bundle(target, drafter, "fp32")
    free = answers(generator(path, slots=2), [Request(prompt, LIMIT) for prompt in PROMPTS])
    stop = free[PROMPTS[0]].tokens[len(PROMPTS[0]) + 3]
    done = answers(generator(path, slots=2, stop=frozenset({stop})), [Request(prompt, LIMIT) for prompt in PROMPTS])
    for prompt in PROMPTS:
        said = free[prompt].tokens[len(prompt) :]
        cut = said.index(stop) + 1 if stop in said else len(said)
        assert done[prompt].tokens[len(prompt) :] == said[:cut]
    assert len(done[PROMPTS[0]].tokens) <= len(PROMPTS[0]) + 4


def test_sampling_is_repeatable_and_not_greedy(target: Path, drafter: Path) -> None:
    path = bundle(target, drafter, "fp32")
    request = Request(PROMPTS[0], LIMIT, temperature=1.5)
    runs = [answers(generator(path, 2, seed=seed), [request])[request.prompt].tokens for seed in (5, 5, 6)]
    greedy = answers(generator(path, 2), [Request(PROMPTS[0], LIMIT)])[PROMPTS[0]].tokens
    assert runs[0] == runs[1]
    assert runs[0] not in (greedy, runs[2])


def test_requests_that_do_not_fit_are_passed_over(target: Path, drafter: Path) -> None:
    path = bundle(target, drafter, "fp32")
    assert set(answers(generator(path, 2), [Request(tuple(range(4, 60)), 20), Request((9, 10), 6)])) == {(9, 10)}


def test_plain_text_is_cut_to_what_the_engine_has_positions_for(target: Path, drafter: Path, tmp_path: Path) -> None:
    folder = bundle(target, drafter, "fp32") / "target"
    engine = CompiledTarget(batched_target(folder / "target.onnx"), folder, LENGTH, "tiny", threads=1)
    taps = open_drafter(drafter).spec.taps
    store = FeatureStore(tmp_path, engine.width, taps, "tiny")
    store.append([5, 6, 7, 8], torch.zeros(4, engine.width), 1, "template")  # responses enough: only text is asked for
    options = TrainOptions(text_tokens=150, response_tokens=3)
    gather(open_target(target), store, taps, options, choose_compute("float32"), lambda progress: None, engine)
    texts = [entry for entry in store.entries if entry.tag == TAG]
    assert sum(entry.length for entry in texts) >= 150
    assert max(entry.length for entry in texts) == LENGTH


def test_a_graph_for_other_tools_is_refused(target: Path, drafter: Path) -> None:
    path = build(
        str(target),
        str(drafter),
        target.parent / "portable",
        BuildOptions(precision="fp32", context=LENGTH, engine={"portable": True}),
    )
    with pytest.raises(IncompatibleError, match="takes a batch"):
        batched_target(path / "target" / "target.onnx")
