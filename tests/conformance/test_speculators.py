"""A drafter with a reduced vocabulary: engines against torch, and against PyPI `speculators` where it is installed.

The package is compared with on a checkpoint that it wrote itself. It brings data sets, web clients and a minute of
imports, so it is no part of the usual set-up: install it without its dependencies' pins, and these tests run.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import models
import numpy as np
import onnxruntime
import pytest
import torch
from forms import FORMS, Cached, bound, runtimes, torch_drafter
from models import IM_END, MASK, VOCAB
from safetensors.torch import load_file, save_file

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.graphs.lowered import Lowered
from dflash_compile.compile.onnxruntime import lower as ort_form
from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.checkpoints.draft_head import drafter_tensors
from dflash_compile.export.drafters import speculators
from dflash_compile.export.parameter_names import EMBEDDING
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.trace import trace_draft, trace_inject
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.backends.onnxruntime.graph import Buffer
from dflash_compile.runtime.bundle.read import open_bundle

CONTEXT, BLOCK, TOLERANCE = 64, 6, 1e-3
COMMITTED = (9, 1, 6, 3, 2, 1, 1, 5, 4, 2, 6, 1)
"""rows of context per cycle: the prompt, then one more than the accepted proposals"""
IDS = (IM_END, *range(30, 380, 5))


@dataclass(frozen=True)
class Pair:
    target: TargetCheckpoint
    drafter: DrafterCheckpoint

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        return {
            "inject": trace_inject(self.drafter, self.target.spec, CONTEXT),
            "draft": trace_draft(self.drafter, self.target.spec, CONTEXT),
        }

    @cached_property
    def sources(self) -> dict[str, Any]:
        return {"target": self.target.tensors, "drafter": drafter_tensors(self.drafter, self.target)}

    def cycles(self) -> list[tuple[np.ndarray, int, list[int]]]:
        """(taps, position, block) of every cycle."""
        generator = torch.Generator().manual_seed(5)
        cycles, position = [], 0
        for rows in COMMITTED:
            taps = torch.randn(rows, len(self.drafter.spec.taps) * self.target.spec.hidden, generator=generator).numpy()
            anchor = int(torch.randint(4, VOCAB, (1,), generator=generator))
            cycles.append((taps, position, [anchor] + [MASK] * (BLOCK - 1)))
            position += rows
        return cycles

    def walk(self, engine: Cached) -> list[np.ndarray]:
        """Draft logits [B - 1, draft_vocab] of every cycle."""
        logits = []
        for taps, position, block in self.cycles():
            engine.inject(taps, position)
            logits.append(engine.draft(block, position + len(taps)))
        return logits

    @cached_property
    def torch_walk(self) -> list[np.ndarray]:
        """The same by the modules that are traced."""
        signatures = {role: graph.signature for role, graph in self.graphs.items()}
        with torch_drafter(self.drafter, self.target, signatures, CONTEXT) as calls:
            return self.walk(Cached(signatures["inject"], calls["inject"], calls["draft"]))


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a head of its own, one whose head is the embedding.

    Both say a few tokens only, so that proposals stand now and then.
    """
    folder = models.write_target(tmp_path_factory.mktemp("target"), request.param)
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight" if request.param == "llama" else EMBEDDING][list(IDS[1:5])] *= 6
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["own head", "rows of the target's head"])
def both(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = models.write_speculators(
        tmp_path_factory.mktemp("drafter"), target, IDS, own_head=request.param, block=BLOCK, taps=(2, 0)
    )
    return Pair(open_target(target), open_drafter(folder))


@pytest.mark.parametrize("form", FORMS)
def test_every_lowered_form_drafts_as_torch_does(both: Pair, form: str, tmp_path: Path) -> None:
    wanted, graphs = both.torch_walk, both.graphs
    assert wanted[0].shape == (BLOCK - 1, len(IDS))
    paths = [bound(graphs[role], form, both.sources, tmp_path) for role in ("inject", "draft")]
    for runtime in runtimes(form):
        for have, want in zip(both.walk(Cached(graphs["inject"].signature, *map(runtime, paths))), wanted, strict=True):
            np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)
            assert (have.argmax(-1) == want.argmax(-1)).all()


@pytest.mark.parametrize("target", ["llama"], indirect=True)
@pytest.mark.parametrize("both_ways", [True, False])
def test_lowered_sliding_layers_look_back_from_the_anchor(target: Path, both_ways: bool, tmp_path: Path) -> None:
    pair = _sliding(target, tmp_path / "drafter", both_ways)
    wanted, graphs = pair.torch_walk, pair.graphs
    other = replace(pair.drafter, spec=replace(pair.drafter.spec, windows_from_anchor=False))
    apart = [np.abs(have - want).max() for have, want in zip(Pair(pair.target, other).torch_walk, wanted, strict=True)]
    assert min(apart) > 10 * TOLERANCE, "a window counted from each row must not pass for this one"
    for form in FORMS:
        paths = [bound(graphs[role], form, pair.sources, tmp_path) for role in ("inject", "draft")]
        found = pair.walk(Cached(graphs["inject"].signature, *(runtimes(form)[-1](path) for path in paths)))
        for have, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)


def test_the_reduced_head_is_quantised_as_a_head(both: Pair) -> None:
    """At int4, too, it keeps eight bits, and no row of the rest of the target's head is in the engine."""
    lowered: Lowered = ort_form.lower(both.graphs["draft"], precision_of("int4"))
    head = [binding for binding in lowered.bindings.values() if binding.ref.tensor == "lm_head.weight"]
    assert {binding.shape for binding in head} == {(len(IDS), both.drafter.spec.hidden)}
    assert {binding.encoding for binding in head} == {
        precision_of("int8").linear(head[0].ref, head[0].shape, head=True)
    }


@pytest.fixture(scope="module")
def bundle(both: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(
        both.target,
        both.drafter,
        tmp_path_factory.mktemp("out") / "bundle",
        BuildOptions(precision="fp32", context=CONTEXT),
    )


def test_a_bundle_proposes_target_tokens(both: Pair, bundle: Path) -> None:
    """The drafter engine of a loaded bundle, cycle by cycle: torch's argmax, mapped, whatever was accepted before."""
    engines = find_backend("onnxruntime").open_engines(open_bundle(bundle), EngineOptions(threads=1))
    drafter: Any = engines.drafter
    assert both.drafter.vocabulary is not None
    for (taps, position, block), logits in zip(both.cycles(), both.torch_walk, strict=True):
        shared = Buffer(onnxruntime, "cpu", taps.shape, "float32")
        shared.read(taps.shape)[:] = taps
        drafter._inject_impl(shared, len(taps), position)
        wanted = [both.drafter.vocabulary.ids[row] for row in logits.argmax(-1)]
        assert drafter.draft(block[0], position + len(taps), BLOCK) == wanted
        assert set(wanted) <= set(IDS)
        assert len(drafter.draft(block[0], position + len(taps), 3)) == 2
    engines.close()


def test_drafted_text_equals_plain_text(both: Pair, bundle: Path) -> None:
    generator, accepted, cycles = np.random.default_rng(3), 0, 0
    with load(bundle) as session:
        for _ in range(8):
            prompt = generator.integers(4, VOCAB, 5).tolist()
            drafted = list(session.tokens(prompt, max_new_tokens=40, block=BLOCK))
            accepted, cycles = accepted + session.statistics.accepted, cycles + session.statistics.cycles
            assert drafted == list(session.tokens(prompt, max_new_tokens=40, draft=False))
    if "lm_head.weight" not in both.drafter.tensors.shapes():
        assert 0 < accepted < (BLOCK - 1) * cycles, "some proposals stand, and some do not"


needs_package = pytest.mark.skipif(
    importlib.util.find_spec("speculators") is None, reason="PyPI speculators is the implementation to compare with"
)


def _published(folder: Path) -> Any:
    """The package's model of the drafter in `folder`, as it loads it.

    Its own attention masks are compiled, so the plain ones are asked for.
    """
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    config = DFlashSpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    return DFlashDraftModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def _published_logits(model: Any, taps: torch.Tensor, position: int, anchor: int) -> np.ndarray:
    """Logits of the rows after the anchor, by the package's training pass with one anchor.

    `taps` [P, n * H] are the rows before it.
    """
    length = position + BLOCK + 1  # it takes no anchor from the last block of a sequence
    features = torch.zeros(1, length, taps.shape[1])
    features[0, :position] = taps
    tokens, mask = torch.zeros(1, length, dtype=torch.long), torch.zeros(1, length)
    tokens[0, position], mask[0, position] = anchor, 1
    with torch.no_grad():
        _, logits, *_ = model._backbone_forward(
            features,
            tokens,
            mask,
            torch.zeros(1, length, model.hidden_size),
            torch.zeros(1, length, dtype=torch.long),
            max_anchors=1,
        )
    return logits[0, 1:].numpy()


@needs_package
def test_it_is_the_published_drafter_on_its_own_checkpoint(both: Pair, tmp_path: Path) -> None:
    """Loaded and written again by the package; our engine of what it wrote equals it over cycles that are partly
    accepted.
    """
    if "lm_head.weight" not in both.drafter.tensors.shapes():
        pytest.skip("the package takes missing rows from a target that it can load by name")
    model = _saved_by_the_package(both, tmp_path / "theirs")
    pair = Pair(both.target, open_drafter(tmp_path / "theirs"))
    assert pair.drafter.vocabulary == both.drafter.vocabulary
    _compare(pair, model, tmp_path)
    assert model.d2t is not None
    assert [int(row + model.d2t[row]) for row in range(len(IDS))] == list(IDS)


def _saved_by_the_package(both: Pair, folder: Path) -> Any:
    model = _published(both.drafter.path)
    model.embed_tokens.weight.data = both.target.read(EMBEDDING).float()
    model.verifier_lm_head.weight.data = model.lm_head.weight.data.clone()
    model.save_pretrained(folder)
    return model


def _compare(pair: Pair, model: Any, tmp_path: Path) -> None:
    """Our engines against the package's `model`, cycle by cycle."""
    graphs = pair.graphs
    paths = [bound(graphs[role], "fp32", pair.sources, tmp_path) for role in ("inject", "draft")]
    found = pair.walk(Cached(graphs["inject"].signature, *map(runtimes("fp32")[0], paths)))
    context = torch.empty(0, len(pair.drafter.spec.taps) * pair.target.spec.hidden)
    for (taps, _, block), have in zip(pair.cycles(), found, strict=True):
        context = torch.cat([context, torch.from_numpy(taps)])
        want = _published_logits(model, context, len(context), block[0])
        np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)
        assert (have.argmax(-1) == want.argmax(-1)).all()


def _sliding(target: Path, folder: Path, both_ways: bool) -> Pair:
    """A drafter whose first layer sees 4 rows before the anchor: fewer than are committed from the first cycle on."""
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4, "use_sliding_window": True}
    path = models.write_speculators(folder, target, IDS, block=BLOCK, taps=(2, 0), **layers)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"sliding_window_non_causal": both_ways}))
    return Pair(open_target(target), open_drafter(path))


@needs_package
@pytest.mark.parametrize("target", ["llama"], indirect=True)
@pytest.mark.parametrize("both_ways", [True, False])
def test_sliding_layers_are_the_published_ones(target: Path, both_ways: bool, tmp_path: Path) -> None:
    pair = _sliding(target, tmp_path / "drafter", both_ways)
    model = _saved_by_the_package(pair, tmp_path / "theirs")
    _compare(Pair(pair.target, open_drafter(tmp_path / "theirs")), model, tmp_path)


@needs_package
def test_the_package_loads_what_we_write(both: Pair, tmp_path: Path) -> None:
    weights = {name: both.drafter.read(name) for name in both.drafter.tensors.shapes()}
    if "lm_head.weight" not in weights:
        pytest.skip("the package takes missing rows from a target that it can load by name")
    saved = speculators.save(both.drafter.spec, weights, both.drafter.vocabulary, tmp_path / "ours")
    model = _published(saved)
    assert all(
        torch.equal(model.state_dict()[name], value) for name, value in load_file(saved / "model.safetensors").items()
    )
    assert (model.block_size, model.mask_token_id, model.target_layer_ids) == (
        BLOCK,
        MASK,
        [tap + 1 for tap in both.drafter.spec.taps],
    )
