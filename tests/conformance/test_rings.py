"""Ring caches of windowed layers against transformers and against whole caches: prompts many windows long, rejected
blocks, rollback.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from forms import Cached, bound, ort_call, runtimes, torch_drafter, torch_target
from models import MASK, VOCAB
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target
from dflash_compile.export.tracing.windows import cache_rows

CONTEXT, WIDEST, RING, TAPS, TOLERANCE = 256, 16, 64, (2, 0), 1e-3
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-oss": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 40},
    ),
    "muse-glimmer": ("muse_glimmer", {"sliding_window": 40}),
    "qwen3": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 2, "tie_word_embeddings": False},
    ),
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    family, overrides = TARGETS[request.param]
    return open_target(models.write_target(tmp_path_factory.mktemp("target"), family, **overrides))


@pytest.fixture(scope="module")
def graph(target: TargetCheckpoint) -> Graph:
    return trace_target(target, TAPS, CONTEXT, widest=WIDEST)


TOKENS: list[int] = torch.randint(4, VOCAB - 4, (230,), generator=torch.Generator().manual_seed(3)).tolist()


def walk(engine: Cached, whole: int = WIDEST) -> tuple[np.ndarray, np.ndarray]:
    """Logits and taps of `TOKENS`: chunks of the widest call, then blocks of which some are wrong from their first row
    on and taken back.
    """
    logits, taps, position = [], [], 0
    while position < len(TOKENS):
        kept = min(whole if position < 100 else (1, 5, 16, 2)[position % 4], len(TOKENS) - position)
        if position >= 100 and position + WIDEST <= CONTEXT:
            engine.verify([TOKENS[position], *[MASK] * (WIDEST - 1)], position)
        piece = engine.verify(TOKENS[position : position + kept], position)
        logits.append(piece[0])
        taps.append(piece[1])
        position += kept
    return np.concatenate(logits), np.concatenate(taps)


@pytest.fixture(scope="module")
def expected(target: TargetCheckpoint) -> tuple[np.ndarray, np.ndarray]:
    kind = AutoModelForImageTextToText if target.spec.family in models.VISION else AutoModelForCausalLM
    model = kind.from_pretrained(target.path, dtype=torch.float32).eval()
    with torch.no_grad():
        out = model(torch.tensor([TOKENS]), output_hidden_states=True)
    return out.logits[0].numpy(), torch.cat([out.hidden_states[tap + 1][0] for tap in TAPS], -1).numpy()


def check(found: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray]) -> None:
    for have, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("target", ["muse-glimmer"], indirect=True)
def test_only_windowed_layers_have_rings(target: TargetCheckpoint, graph: Graph) -> None:
    rows = {port.shape[2] for port in graph.signature.inputs if port.name.startswith("k_cache")}
    assert rows == {RING, CONTEXT}


def test_a_ring_is_a_multiple_of_64_rows_and_only_there_where_it_is_half_as_long() -> None:
    assert cache_rows((None, 40, 48, 49, 2048), CONTEXT, WIDEST) == (CONTEXT, 64, 64, 128, CONTEXT)
    assert cache_rows((None, 40), 2 * RING - 1, WIDEST) == (2 * RING - 1, 2 * RING - 1)
    assert cache_rows((None, 40), CONTEXT, None) == (CONTEXT, CONTEXT)


@pytest.mark.parametrize("target", ["muse-glimmer", "gpt-oss"], indirect=True)
def test_the_traced_module_is_the_model(
    target: TargetCheckpoint, graph: Graph, expected: tuple[np.ndarray, np.ndarray]
) -> None:
    with torch_target(target, graph.signature, TAPS, CONTEXT) as call:
        check(walk(Cached(graph.signature, call)), expected)


@pytest.mark.parametrize("target", ["muse-glimmer", "gpt-oss"], indirect=True)
@pytest.mark.parametrize("form", ["standard", "fp32"])
def test_every_lowered_form_is_the_model(
    target: TargetCheckpoint, graph: Graph, expected: tuple[np.ndarray, np.ndarray], form: str, tmp_path: Path
) -> None:
    path = bound(graph, form, {"target": target.tensors}, tmp_path)
    check(walk(Cached(graph.signature, runtimes(form)[-1](path))), expected)


@pytest.mark.parametrize("target", ["qwen3"], indirect=True)
def test_a_ring_of_too_few_rows_shows(
    target: TargetCheckpoint, expected: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    """Calls wider than the rings were made for overwrite rows that are still seen."""
    narrow = trace_target(target, TAPS, CONTEXT, widest=1)
    call = ort_call(bound(narrow, "fp32", {"target": target.tensors}, tmp_path))
    check(walk(Cached(narrow.signature, call)), expected)  # a ring is rounded up: 16 rows still fit
    with pytest.raises(AssertionError):
        check(walk(Cached(narrow.signature, call), whole=40), expected)


@pytest.mark.parametrize("target", ["muse-glimmer", "gpt-oss"], indirect=True)
def test_rows_are_the_same_bits_at_every_width_and_after_every_rollback(
    target: TargetCheckpoint, graph: Graph, tmp_path: Path
) -> None:
    call = ort_call(bound(graph, "int8", {"target": target.tensors}, tmp_path))
    plain, jumpy = Cached(graph.signature, call), Cached(graph.signature, call)
    wanted = np.concatenate([plain.verify(TOKENS[start : start + 2], start)[0] for start in range(0, 200, 2)])
    found, position = [], 0
    while position < 200:
        kept = min((3, 16, 7, 2)[len(found) % 4], 200 - position)
        if kept < 2:
            kept, position = 2, position - 1
            found[-1] = found[-1][:-1]
        jumpy.verify([TOKENS[position], *[MASK] * (WIDEST - 1)], position)
        found.append(jumpy.verify(TOKENS[position : position + kept], position)[0])
        position += kept
    assert (np.concatenate(found) == wanted).all()


def _assistant(folder: Path, target: Path) -> Path:
    return models.write_assistant(
        folder, target, layer_types=["sliding_attention", "full_attention", "sliding_attention"], sliding_window=40
    )


def _dflash2(folder: Path, target: Path) -> Path:
    return models.write_drafter2(folder, target, sliding_window=40)


def _speculators(folder: Path, target: Path) -> Path:
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40, "use_sliding_window": True}
    return models.write_speculators(folder, target, tuple(range(2, 90)), block=6, taps=(2, 0), **layers)


def _zlab(folder: Path, target: Path) -> Path:
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 40, "use_sliding_window": True}
    return models.write_drafter(folder, target, block=6, taps=(2, 0), **layers)


DIALECTS = {
    "muse": ("muse_glimmer", _assistant),
    "dflash2": ("llama", _dflash2),
    "speculators": ("llama", _speculators),
    "zlab": ("llama", _zlab),
}


@pytest.fixture(scope="module", params=DIALECTS)
def drafted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TargetCheckpoint, DrafterCheckpoint]:
    """A drafter of every dialect whose layers slide in a way of their own: causal or both ways, from each row or from
    the anchor.
    """
    family, write = DIALECTS[request.param]
    folder = tmp_path_factory.mktemp("pair")
    path = models.write_target(folder / "target", family)
    return open_target(path), open_drafter(write(folder / "drafter", path))


def cycles(pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> list[tuple[np.ndarray, int, list[int]]]:
    """(taps, position, block) of cycles that commit 1 to 16 rows each, over several rings."""
    random = torch.Generator().manual_seed(5)
    made, position = [], 0
    for number in range(30):
        rows = (16, 16, 1, 5, 3, 6)[number % 6]
        taps = torch.randn(rows, len(pair[1].spec.taps) * pair[0].spec.hidden, generator=random).numpy()
        anchor = int(torch.randint(4, VOCAB - 4, (1,), generator=random))
        made.append((taps, position, [anchor] + [MASK] * (pair[1].spec.block - 1)))
        position += rows
    return made


def drafts(pair: tuple[TargetCheckpoint, DrafterCheckpoint], engine: Cached) -> list[np.ndarray]:
    found = []
    for taps, position, block in cycles(pair):
        engine.inject(taps, position)
        found.append(engine.draft(block, position + len(taps)))
    return found


def _whole(signature: Signature, context: int) -> Signature:
    """`signature` with caches of `context` rows."""
    ports = [
        tuple(
            replace(port, shape=(*port.shape[:2], context, port.shape[3])) if "cache" in port.name else port
            for port in side
        )
        for side in (signature.inputs, signature.outputs)
    ]
    return replace(signature, inputs=ports[0], outputs=ports[1])


def test_a_drafter_with_rings_proposes_what_it_does_without(
    drafted: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    context = 320
    target, drafter = drafted

    graphs = {
        "inject": trace_inject(drafter, target.spec, context, widest=WIDEST),
        "draft": trace_draft(drafter, target.spec, context, widest=WIDEST),
    }
    rings = {role: graph.signature for role, graph in graphs.items()}
    whole = {role: _whole(signature, context) for role, signature in rings.items()}
    for signature in rings.values():
        assert RING in (rows := [port.shape[2] for port in signature.inputs if "cache" in port.name])
        assert set(rows) <= {RING, context}

    def by_torch(signatures: dict[str, Signature]) -> list[np.ndarray]:
        with torch_drafter(drafter, target, signatures, context) as calls:
            return drafts(drafted, Cached(signatures["inject"], calls["inject"], calls["draft"]))

    wanted = by_torch(whole)
    sources = {"target": target.tensors, "drafter": drafter.tensors}
    paths = [bound(graphs[role], "fp32", sources, tmp_path) for role in ("inject", "draft")]
    lowered = drafts(drafted, Cached(rings["inject"], *(ort_call(path) for path in paths)))
    for found in (by_torch(rings), lowered):
        for have, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(have, want, atol=TOLERANCE, rtol=0)
