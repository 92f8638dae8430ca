"""The demo's own pair, SmolLM2-135M-Instruct and its drafter, end to end: nothing random, nothing tiny.

Slow: bundles at int8 and fp32 are built, and every suite prompt is answered with drafting, without, and by
transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash_compile.artifacts import ROOT
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.runtime import Sampling, load
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import FixedWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Recorder
from dflash_compile.train.evaluate import matches
from dflash_compile.train.trainer import Vocabulary

pytestmark = pytest.mark.slow
SUITES = Path(__file__).parents[2] / "artifacts" / "prompts"
TOKENS = 128
NUMERIC_MARGIN = 0.02
"""logits: transformers and the engine may differ by this much at fp32, so a smaller top-2 gap decides nothing"""


def prompts(per_suite: int) -> list[str]:
    """The first lines of every suite: code, tools, reasoning, chat."""
    return [line for suite in sorted(SUITES.glob("*.txt")) for line in suite.read_text().splitlines()[:per_suite]]


@pytest.fixture(scope="module")
def target() -> TargetCheckpoint:
    return open_target("smollm2-135m")


@pytest.fixture(scope="module")
def drafter() -> DrafterCheckpoint:
    return open_drafter(ROOT / "smollm2-135m-dflash")


@pytest.fixture(scope="module")
def model(target: TargetCheckpoint) -> Any:
    return load_model(target)


class Bundles:
    """One session per precision, built when first asked for."""

    def __init__(self, folder: Path, target: TargetCheckpoint, drafter: DrafterCheckpoint) -> None:
        self.folder, self.target, self.drafter = folder, target, drafter
        self.path, self.session = cache(self._path), cache(self._session)

    def _path(self, precision: str) -> Path:
        return build(self.target, self.drafter, self.folder / precision, BuildOptions(precision=precision, context=640))

    def _session(self, precision: str) -> Session:
        return load(self.path(precision))


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory, target: TargetCheckpoint, drafter: DrafterCheckpoint) -> Bundles:
    return Bundles(tmp_path_factory.mktemp("bundles"), target, drafter)


@pytest.mark.parametrize(("precision", "per_suite"), [("int8", 6), ("fp32", 2), ("int4", 2)])
def test_drafting_changes_no_token(bundles: Bundles, precision: str, per_suite: int) -> None:
    """The default precision on more prompts: the others differ from it in their products only."""
    session = bundles.session(precision)
    accepted = 0
    for number, prompt in enumerate(prompts(per_suite)):
        plain = list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False))
        assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=session.manifest.pairing.block)) == plain, (
            prompt
        )
        accepted += session.statistics.accepted
        if number % per_suite == 0:
            assert list(session.tokens(prompt, max_new_tokens=TOKENS)) == plain, f"widths chosen on the way: {prompt}"
    assert accepted > 33 * per_suite, "a drafter that is never right proves nothing"


@pytest.mark.parametrize("block", [2, 3, 4])
def test_narrower_blocks_change_no_token(bundles: Bundles, block: int) -> None:
    session = bundles.session("int8")
    for prompt in prompts(1):
        narrow = list(session.tokens(prompt, max_new_tokens=TOKENS, block=block))
        assert narrow == list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False)), prompt


SAMPLED = [
    Sampling(temperature=0.7, top_p=0.95, seed=1),
    Sampling(temperature=1.0, seed=2),
    Sampling(temperature=0.9, top_k=40, min_p=0.05, repetition_penalty=1.1, seed=3),
]


@pytest.mark.parametrize("sampling", SAMPLED, ids=lambda sampling: f"temperature {sampling.temperature}")
def test_drafting_changes_no_sampled_token(bundles: Bundles, sampling: Sampling) -> None:
    session, accepted = bundles.session("int8"), 0
    for number, prompt in enumerate(prompts(3)):
        plain = list(session.tokens(prompt, max_new_tokens=64, draft=False, sampling=sampling))
        options = ({}, {"block": 2}, {"block": session.manifest.pairing.block}, {"lookup": True})[number % 4]
        assert list(session.tokens(prompt, max_new_tokens=64, sampling=sampling, **options)) == plain, prompt
        accepted += session.statistics.accepted
    assert accepted > 30, "a drafter that is never right proves nothing"


@torch.no_grad()
def test_fp32_tokens_are_those_of_transformers(bundles: Bundles, model: Any, target: TargetCheckpoint) -> None:
    """Equal, or parted where the two best tokens are so close that rounding decides between them."""
    session = bundles.session("fp32")
    equal = 0
    asked = prompts(3)
    for prompt in asked:
        ids = session.encode(prompt)
        ours = list(session.tokens(prompt, max_new_tokens=TOKENS, block=session.manifest.pairing.block))
        theirs = model.generate(
            torch.tensor([ids]),
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=list(target.spec.eos_ids),
        )
        theirs = theirs[0, len(ids) :].tolist()
        equal += ours == theirs
        parted = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if parted is None:
            assert len(ours) == len(theirs), prompt
            continue
        best = model(torch.tensor([ids + ours[:parted]])).logits[0, -1].topk(2).values
        margin = float(best[0] - best[1])
        assert margin < NUMERIC_MARGIN, f"{prompt}: parts at token {parted}, where the best token leads by {margin:.4f}"
    assert equal >= 0.8 * len(asked)


def torch_drafter(drafter: DrafterCheckpoint) -> DflashV1:
    """The shipped drafter as a torch module."""
    width = drafter.tensors.shapes()["fc.weight"][1]
    module = DflashV1(drafter.spec, width).eval()
    module.load_state_dict({name: drafter.read(name).float() for name in drafter.tensors.shapes()})
    return module


class Cycles(Recorder):
    """Remembers how many proposals each cycle accepted."""

    def __init__(self, block: int) -> None:
        super().__init__(block)
        self.accepted: list[int] = []

    def cycle(self, drafted: bool, offered: int, accepted: int) -> None:
        super().cycle(drafted, offered, accepted)
        self.accepted.append(accepted)


@dataclass(frozen=True)
class Outcome:
    """An answer of an engine pair, and what each of its cycles accepted."""

    prompt: list[int]
    answer: list[int]
    accepted: list[int]


def engine_outcomes(session: Session, asked: list[str]) -> list[Outcome]:
    """Greedy answers in whole blocks."""
    engines, block = session.engines, session.manifest.pairing.block
    outcomes = []
    for prompt in asked:
        ids, cycles = session.encode(prompt), Cycles(block)
        request = Request(ids, TOKENS, block=block)
        limits = plan_limits(request, engines.target, session.manifest.text.eos_ids)
        answer = list(run(engines, request, limits, FixedWidth(block), cycles))
        outcomes.append(Outcome(ids, answer, cycles.accepted))
    return outcomes


@torch.no_grad()
def agreement(outcomes: list[Outcome], model: Any, drafter: DrafterCheckpoint) -> float:
    """Share of cycles that accepted exactly as many proposals as the torch module has right there: too many is as wrong
    as too few.
    """
    module, embedding, spec = torch_drafter(drafter), model.get_input_embeddings().weight, drafter.spec
    proposable = Vocabulary(
        model.get_output_embeddings().weight, torch.tensor(drafter.vocabulary.ids) if drafter.vocabulary else None
    )
    same = total = 0
    for outcome in outcomes:
        tokens, prompt = torch.tensor(outcome.prompt + outcome.answer), len(outcome.prompt)
        states = model(tokens[None], output_hidden_states=True).hidden_states
        features = torch.cat([states[tap + 1][0] for tap in spec.taps], -1)
        right = matches(
            module, embedding, proposable.head, tokens, features, prompt, spec.block, torch.float32, proposable.labels
        ).tolist()
        place = 0
        for accepted in outcome.accepted:
            same += min(accepted, len(right) - place) == right[place]  # the last block may reach past the answer
            total += 1
            place += accepted + 1
    return same / total


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.99), ("int8", 0.85)])
def test_compiled_acceptance_is_that_of_the_torch_module(
    bundles: Bundles, model: Any, drafter: DrafterCheckpoint, precision: str, least: float
) -> None:
    outcomes = engine_outcomes(bundles.session(precision), prompts(2))
    assert agreement(outcomes, model, drafter) >= least
    assert sum(sum(outcome.accepted) for outcome in outcomes) > 100, "a drafter that is never right proves nothing"


FAULTS: dict[str, Any] = {
    "taps one layer early": lambda spec: replace(spec, taps=tuple(max(tap - 1, 0) for tap in spec.taps)),
    "taps in another order": lambda spec: replace(spec, taps=spec.taps[::-1]),
    "causal inside the block": lambda spec: replace(spec, causal=(True,) * spec.layers),
    "another rotary base": lambda spec: replace(spec, rope_theta=10_000.0),
    "another mask token": lambda spec: replace(spec, mask_id=1000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_drafter_is_noticed(
    tmp_path: Path, bundles: Bundles, target: TargetCheckpoint, drafter: DrafterCheckpoint, model: Any, fault: str
) -> None:
    """Compiled onto the target of the good one where it has the taps that this one asks for."""
    faulty = replace(drafter, spec=FAULTS[fault](drafter.spec))
    donor = bundles.path("fp32") if faulty.spec.taps == drafter.spec.taps else None
    options = BuildOptions(precision="fp32", context=640)
    with load(build(target, faulty, tmp_path / "faulty", options, target_from=donor)) as session:
        outcomes = engine_outcomes(session, prompts(1))
    assert agreement(outcomes, model, drafter) < 0.97


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shifted_position_is_noticed(
    bundles: Bundles, model: Any, drafter: DrafterCheckpoint, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    session = bundles.session("fp32")
    engine = session.engines.drafter
    draft = engine.draft
    monkeypatch.setattr(engine, "draft", lambda anchor, position, rows: draft(anchor, position + shift, rows))
    assert agreement(engine_outcomes(session, prompts(1)), model, drafter) < 0.97
