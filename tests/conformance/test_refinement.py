"""Refined drafts against a plain loop over drafts of one pass, in every form; and what a refined bundle says."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
import torch
from forms import FORMS, Cached, bound, runtimes, torch_drafter

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.tracing.refinement import most_confident
from dflash_compile.export.tracing.trace import trace_draft, trace_inject
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.read import open_bundle

CONTEXT, BLOCK, TOLERANCE = 64, 6, 1e-3
CYCLES = ((11, 6), (1, 6), (3, 4), (2, 2), (5, 3))
"""rows of context, then of the block"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetCheckpoint, DrafterCheckpoint]:
    target = models.write_target(tmp_path_factory.mktemp("target") / "target", num_hidden_layers=3)
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7, "use_sliding_window": True}
    return open_target(target), open_drafter(
        models.write_drafter(tmp_path_factory.mktemp("drafter") / "drafter", target, block=BLOCK, **kinds)
    )


def refined(
    engine: Cached, block: list[int], position: int, refine: int, ids: Sequence[int] = range(models.VOCAB)
) -> np.ndarray:
    """Logits [B - 1, V] by the definition: sort, keep, mask, draft again. `ids` are the tokens of the head's rows."""
    rows = len(block) - 1
    settled: dict[int, np.ndarray] = {}
    logits = engine.draft(block, position)
    for done in range(1, refine + 1):
        sure = {
            row: float(torch.tensor(logits[row]).double().softmax(-1).max())
            for row in range(rows)
            if row not in settled
        }
        room = ceil(rows * done / (refine + 1)) - len(settled)
        for row in sorted(sure, key=lambda row: -sure[row])[:room]:
            settled[row] = logits[row]
        tokens = [ids[int(settled[row].argmax())] if row in settled else block[1 + row] for row in range(rows)]
        logits = engine.draft([block[0], *tokens], position)
    return np.stack([settled.get(row, logits[row]) for row in range(rows)])


def blocks(pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> list[tuple[np.ndarray, int, list[int]]]:
    """(taps, position, block) of every cycle."""
    generator, position, cycles = np.random.default_rng(5), 0, []
    for rows, width in CYCLES:
        taps = generator.standard_normal((rows, len(pair[1].spec.taps) * pair[0].spec.hidden), dtype=np.float32)
        cycles.append((taps, position, [int(generator.integers(4, 300))] + [pair[1].spec.mask_id] * (width - 1)))
        position += rows
    return cycles


@pytest.fixture(scope="module")
def expected(pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> dict[int, list[np.ndarray]]:
    """By number of refinements, logits of every cycle by the loop."""
    target, drafter = pair
    graphs = {
        "inject": trace_inject(drafter, target.spec, CONTEXT),
        "draft": trace_draft(drafter, target.spec, CONTEXT),
    }
    signatures = {role: graph.signature for role, graph in graphs.items()}
    found: dict[int, list[np.ndarray]] = {}
    with torch_drafter(drafter, target, signatures, CONTEXT) as calls:
        for refine in range(4):
            engine = Cached(signatures["inject"], calls["inject"], calls["draft"])
            found[refine] = []
            for taps, position, block in blocks(pair):
                engine.inject(taps, position)
                found[refine].append(refined(engine, block, position + len(taps), refine))
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("refine", [1, 3])
def test_every_form_refines_as_the_loop_does(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint],
    expected: dict[int, list[np.ndarray]],
    refine: int,
    form: str,
    tmp_path: Path,
) -> None:
    """At widths down to two, where more passes were asked for than there are proposals."""
    target, drafter = pair
    sources = {"target": target.tensors, "drafter": drafter.tensors}
    inject, draft = (
        trace_inject(drafter, target.spec, CONTEXT),
        trace_draft(drafter, target.spec, CONTEXT, refine=refine),
    )
    paths = [bound(graph, form, sources, tmp_path) for graph in (inject, draft)]
    for runtime in runtimes(form):
        engine = Cached(inject.signature, *map(runtime, paths))
        for (taps, position, block), want in zip(blocks(pair), expected[refine], strict=True):
            engine.inject(taps, position)
            have = engine.draft(block, position + len(taps))
            np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)
            assert (have.argmax(-1) == want.argmax(-1)).all()


def test_refining_changes_something(expected: dict[int, list[np.ndarray]]) -> None:
    """Guards the comparison: a graph that ignored its kept proposals must not pass it."""
    for one, other in ((0, 1), (1, 3)):
        assert max(np.abs(a - b).max() for a, b in zip(expected[one], expected[other], strict=True)) > 100 * TOLERANCE


@pytest.mark.parametrize("form", FORMS)
def test_kept_proposals_of_a_reduced_head_stand_as_their_tokens(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], form: str, tmp_path: Path
) -> None:
    target, ids = pair[0], [3, 9, 17, 40, 41, 99, 180, 181, 250, 301, 302, 383]
    drafter = open_drafter(models.write_speculators(tmp_path / "reduced", target.path, ids, block=BLOCK))
    sources = {"target": target.tensors, "drafter": drafter.tensors}
    graphs = [
        trace_inject(drafter, target.spec, CONTEXT),
        *(trace_draft(drafter, target.spec, CONTEXT, refine=refine) for refine in (0, 2)),
    ]
    folders = [tmp_path / name for name in ("inject", "once", "thrice")]
    for folder in folders:
        folder.mkdir()
    inject, once, thrice = (bound(graph, form, sources, folder) for graph, folder in zip(graphs, folders, strict=True))
    for runtime in runtimes(form):
        loop, engine = (Cached(graphs[0].signature, runtime(inject), runtime(draft)) for draft in (once, thrice))
        for taps, position, block in blocks((target, drafter)):
            loop.inject(taps, position)
            engine.inject(taps, position)
            want, have = refined(loop, block, position + len(taps), 2, ids), engine.draft(block, position + len(taps))
            np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)
            assert (have.argmax(-1) == want.argmax(-1)).all()


@pytest.mark.parametrize(
    ("probabilities", "kept", "count", "wanted"),
    [
        ([0.5, 0.9, 0.7, 0.6], [], 2, [1, 2]),
        ([0.5, 0.9, 0.7, 0.6], [0], 2, [0, 1]),
        ([0.6, 0.6, 0.6, 0.6], [], 3, [0, 1, 2]),
        ([0.6, 0.6, 0.9, 0.6], [3], 3, [0, 2, 3]),
        ([0.5, 0.9, 0.7, 0.6], [], 0, []),
        ([0.5, 0.9, 0.7, 0.6], [1], 4, [0, 1, 2, 3]),
        ([1.0, 1.0, 0.7, 0.6], [3], 1, [3]),
    ],
)
def test_confidence_worked_by_hand(probabilities: list[float], kept: list[int], count: int, wanted: list[int]) -> None:
    logits = torch.tensor([[[p, (1 - p) / 2, (1 - p) / 2] for p in probabilities]]).log()
    before = torch.tensor([[row in kept for row in range(4)]])
    assert most_confident(logits, before, count)[0].nonzero().flatten().tolist() == wanted


@pytest.fixture(scope="module")
def bundle(pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = BuildOptions(precision="int4", context=96, engine={"refine": 2})
    return build(*pair, tmp_path_factory.mktemp("out") / "bundle", options)


def test_the_text_is_the_targets(bundle: Path) -> None:
    assert open_bundle(bundle).manifest.config["refine"] == 2
    with load(bundle) as session:
        plain = list(session.tokens([5, 6, 7, 8], max_new_tokens=40, draft=False))
        for width in (2, 3, BLOCK, None):
            assert list(session.tokens([5, 6, 7, 8], max_new_tokens=40, block=width)) == plain


def test_passes_share_one_copy_of_the_weights_and_every_head_is_a_head(bundle: Path) -> None:
    """At int4 the head keeps eight bits, in the passes before the last as well."""
    graph = onnx.load(bundle / "drafter" / "draft.onnx", load_external_data=False).graph
    assert len([node for node in graph.node if node.op_type == "GroupQueryAttention"]) == 3 * 2
    heads = [name for tensor in graph.initializer if (name := tensor.name).startswith("target.") and ".int" in name]
    assert [name.rpartition(".")[2] for name in heads] == ["int8"]
    assert len({tensor.name for tensor in graph.initializer}) == len(graph.initializer)
