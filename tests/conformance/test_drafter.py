"""The exported drafter against the published implementation (PyPI `dflash`), over cycles of which only part is
accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from forms import FORMS, Cached, bound, ort_call, runtimes, torch_drafter
from safetensors.torch import load_file

from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.parameter_names import EMBEDDING
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.refinement import most_confident
from dflash_compile.export.tracing.trace import trace_draft, trace_inject

published = pytest.importorskip("dflash.model", reason="PyPI dflash is the implementation to compare with")

CONTEXT, BLOCK, TOLERANCE = 64, 6, 1e-3
COMMITTED = (11, 1, 6, 3, 2)
"""rows of context per cycle: the prompt, then one more than the accepted proposals"""
SLIDING = ["sliding_attention", "full_attention"]
DRAFTERS = {
    "full": {},
    "biased": {"attention_bias": True},
    "sliding-causal": {"layer_types": SLIDING, "sliding_window": 7, "use_sliding_window": True},
    "sliding-both-ways": {"layer_types": SLIDING, "sliding_window": 4, "use_sliding_window": True, "is_causal": False},
    "other-heads": {"num_key_value_heads": 1, "head_dim": 32},
}


@dataclass(frozen=True)
class Pair:
    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    path: Path
    graphs: dict[str, Graph]

    def prepared(self) -> list[tuple[np.ndarray, int, list[int]]]:
        """(taps, position, block) of every cycle."""
        generator = torch.Generator().manual_seed(5)
        cycles, position = [], 0
        for rows in COMMITTED:
            taps = torch.randn(rows, len(self.drafter.spec.taps) * self.target.spec.hidden, generator=generator).numpy()
            anchor = int(torch.randint(4, self.target.spec.vocab, (1,), generator=generator))
            cycles.append((taps, position, [anchor] + [self.drafter.spec.mask_id] * (BLOCK - 1)))
            position += rows
        return cycles


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module", params=DRAFTERS)
def both(request: pytest.FixtureRequest, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = models.write_drafter(
        tmp_path_factory.mktemp("drafter"), target, block=BLOCK, taps=(2, 0), **DRAFTERS[request.param]
    )
    opened, drafter = open_target(target), open_drafter(path)
    graphs = {
        "inject": trace_inject(drafter, opened.spec, CONTEXT),
        "draft": trace_draft(drafter, opened.spec, CONTEXT),
    }
    return Pair(opened, drafter, path, graphs)


@pytest.fixture(scope="module")
def expected(both: Pair) -> list[np.ndarray]:
    """Logits of every cycle by the published model, whose cache is cropped back to the context after each."""
    model = published.DFlashDraftModel.from_pretrained(both.path, dtype=torch.float32).eval()
    embedding, cache = both.target.read(EMBEDDING).float(), published._make_cache(model.config)
    head = both.target.read("lm_head.weight").float()
    logits = []
    for taps, position, block in both.prepared():
        end = position + len(taps)
        with torch.no_grad():
            hidden = model(
                target_hidden=torch.from_numpy(taps)[None],
                noise_embedding=embedding[block][None],
                position_ids=torch.arange(position, end + BLOCK)[None],
                past_key_values=cache,
                use_cache=True,
            )
        published._crop_to(cache, end)
        logits.append((hidden[0, 1:] @ head.T).numpy())
    return logits


def walk(engine: Cached, both: Pair) -> list[np.ndarray]:
    logits = []
    for taps, position, block in both.prepared():
        engine.inject(taps, position)
        logits.append(engine.draft(block, position + len(taps)))
    return logits


def compare(found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for cycle, (have, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0, err_msg=f"cycle {cycle}")
        assert (have.argmax(-1) == want.argmax(-1)).all()


def test_the_traced_modules_are_the_published_drafter(both: Pair, expected: list[np.ndarray]) -> None:
    signatures = {role: graph.signature for role, graph in both.graphs.items()}
    with torch_drafter(both.drafter, both.target, signatures, CONTEXT) as calls:
        compare(walk(Cached(signatures["inject"], calls["inject"], calls["draft"]), both), expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_lowered_form_is_the_published_drafter(
    both: Pair, expected: list[np.ndarray], form: str, tmp_path: Path
) -> None:
    sources = {"target": both.target.tensors, "drafter": both.drafter.tensors}
    paths = [bound(both.graphs[role], form, sources, tmp_path) for role in ("inject", "draft")]
    for runtime in runtimes(form):
        compare(walk(Cached(both.graphs["inject"].signature, *map(runtime, paths)), both), expected)


@pytest.mark.parametrize("both", ["full"], indirect=True)
def test_a_block_narrower_than_the_drafters_own_runs(both: Pair, tmp_path: Path) -> None:
    sources = {"target": both.target.tensors, "drafter": both.drafter.tensors}
    calls = [ort_call(bound(both.graphs[role], "fp32", sources, tmp_path)) for role in ("inject", "draft")]
    engine = Cached(both.graphs["inject"].signature, *calls)
    taps, position, block = both.prepared()[0]
    engine.inject(taps, position)
    assert engine.draft(block[:2], len(taps)).shape == (1, both.target.spec.vocab)


@pytest.mark.parametrize("refine", [0, 1])
def test_a_draft_from_the_anchor_is_the_published_drafter_a_row_shorter(
    target: Path, refine: int, tmp_path: Path
) -> None:
    """The published modules run any number of rows: every one of them proposes, and the last mask of the block is not
    run.
    """
    shared = {"block": BLOCK - 1, "taps": (2, 0)}
    plain = models.write_drafter(tmp_path / "plain", target, **shared)
    folder = models.write_speculators(
        tmp_path / "drafter", target, range(models.VOCAB), sample_from_anchor=True, **shared
    )
    opened, drafter = open_target(target), open_drafter(folder)
    graphs = {
        "inject": trace_inject(drafter, opened.spec, CONTEXT),
        "draft": trace_draft(drafter, opened.spec, CONTEXT, refine=refine),
    }
    both = Pair(opened, drafter, plain, graphs)
    model = published.DFlashDraftModel.from_pretrained(plain, dtype=torch.float32).eval()
    embedding, cache, head = (
        opened.read(EMBEDDING).float(),
        published._make_cache(model.config),
        opened.read("lm_head.weight").float(),
    )

    def logits(taps: torch.Tensor, position: int, rows: list[int]) -> torch.Tensor:
        end = position + taps.shape[1]
        with torch.no_grad():
            places = torch.arange(position, end + len(rows))[None]
            out = model(
                target_hidden=taps,
                noise_embedding=embedding[rows][None],
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
        published._crop_to(cache, end)
        return out[0] @ head.T

    wanted = []
    for taps, position, block in both.prepared():
        once = logits(torch.from_numpy(taps)[None], position, block[:-1])
        for _ in range(refine):
            kept = most_confident(once[None], torch.zeros(1, BLOCK - 1, dtype=torch.bool), 3)[
                0
            ]  # ceil(5 proposals * 1 / 2)
            rows = [block[0], *torch.where(kept, once.argmax(-1), drafter.spec.mask_id).tolist()]
            once = torch.where(
                kept[:, None], once, logits(torch.empty(1, 0, taps.shape[1]), position + len(taps), rows[:-1])
            )
        wanted.append(once.numpy())
    sources = {"target": opened.tensors, "drafter": drafter.tensors}
    for form in FORMS:
        paths = [bound(graphs[role], form, sources, tmp_path) for role in ("inject", "draft")]
        for runtime in runtimes(form):
            compare(walk(Cached(graphs["inject"].signature, *map(runtime, paths)), both), wanted)


def test_an_embedding_and_a_head_of_its_own(target: Path, tmp_path: Path) -> None:
    """A DeepSpec drafter: every row of 7 proposes, and nothing but the taps is the target's."""
    opened, drafter = open_target(target), open_drafter(models.write_deepspec(tmp_path / "drafter", target))
    graphs = {
        "inject": trace_inject(drafter, opened.spec, CONTEXT),
        "draft": trace_draft(drafter, opened.spec, CONTEXT),
    }
    both = Pair(opened, drafter, models.write_drafter(tmp_path / "plain", target, block=7, taps=(2, 0)), graphs)
    model = published.DFlashDraftModel.from_pretrained(both.path, dtype=torch.float32).eval()
    cache, stored = published._make_cache(model.config), load_file(drafter.path / "model.safetensors")
    engine = Cached(
        graphs["inject"].signature,
        *(ort_call(bound(graphs[role], "fp32", {"drafter": drafter.tensors}, tmp_path)) for role in graphs),
    )
    for taps, position, block in both.prepared():
        end, rows = position + len(taps), [block[0]] + [drafter.spec.mask_id] * 6
        with torch.no_grad():
            places, noise = torch.arange(position, end + 7)[None], stored["embed_tokens.weight"][rows][None]
            out = model(
                target_hidden=torch.from_numpy(taps)[None],
                noise_embedding=noise,
                position_ids=places,
                past_key_values=cache,
                use_cache=True,
            )
        published._crop_to(cache, end)
        engine.inject(taps, position)
        found = engine.draft([*rows, drafter.spec.mask_id], end)
        np.testing.assert_allclose(found, (out[0] @ stored["lm_head.weight"].T).numpy(), atol=10 * TOLERANCE, rtol=0)


class Swapped:
    """The tensors of a drafter whose taps are concatenated in the wrong order."""

    def __init__(self, tensors: Any) -> None:
        self._tensors, self.shapes = tensors, tensors.shapes

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        found: torch.Tensor = self._tensors.rows(name, start, stop)
        return found.roll(found.shape[1] // 2, dims=1) if name == "fc.weight" else found


FAULTS: dict[str, Callable[[DrafterCheckpoint], DrafterCheckpoint]] = {
    "window a row too wide": lambda found: replace(found, spec=replace(found.spec, windows=(5, None))),
    "window a row too narrow": lambda found: replace(found, spec=replace(found.spec, windows=(3, None))),
    "window taken for a full layer": lambda found: replace(found, spec=replace(found.spec, windows=(None, None))),
    "window counted from the anchor": lambda found: replace(found, spec=replace(found.spec, windows_from_anchor=True)),
    "rows that do not look ahead": lambda found: replace(found, spec=replace(found.spec, causal=(True, False))),
    "another mask token": lambda found: replace(found, spec=replace(found.spec, mask_id=found.spec.mask_id + 1)),
    "another RoPE base": lambda found: replace(found, spec=replace(found.spec, rope_theta=found.spec.rope_theta * 2)),
    "taps in the wrong order": lambda found: replace(found, tensors=Swapped(found.tensors)),
}


@pytest.mark.parametrize("both", ["sliding-both-ways"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows(both: Pair, expected: list[np.ndarray], fault: str) -> None:
    """Guards the comparison itself: a drafter read wrong in one thing must not pass it."""
    signatures = {role: graph.signature for role, graph in both.graphs.items()}
    wrong = replace(both, drafter=FAULTS[fault](both.drafter))
    with torch_drafter(wrong.drafter, both.target, signatures, CONTEXT) as calls:
        found = walk(Cached(signatures["inject"], calls["inject"], calls["draft"]), wrong)
    assert max(np.abs(have - want).max() for have, want in zip(found, expected, strict=True)) > 10 * TOLERANCE


def test_a_shifted_position_shows(both: Pair, expected: list[np.ndarray]) -> None:
    """Guards the comparison itself: one row off must not pass it."""
    signatures = {role: graph.signature for role, graph in both.graphs.items()}
    with torch_drafter(both.drafter, both.target, signatures, CONTEXT) as calls:
        engine = Cached(signatures["inject"], calls["inject"], calls["draft"])
        taps, position, block = both.prepared()[0]
        engine.inject(taps, position)
        shifted = engine.draft(block, position + len(taps) - 1)
    assert np.abs(shifted - expected[0]).max() > 10 * TOLERANCE
