"""The exported DFlash2 drafter against the published implementation (PyPI `dflash`), over cycles of which only part is
accepted.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from forms import FORMS, Cached, bound, ort_call, torch_drafter
from models import MASK, VOCAB
from torch import nn

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.parameter_names import EMBEDDING
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.trace import trace_draft, trace_inject
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import UsageError

published = pytest.importorskip("dflash.model", reason="PyPI dflash is the implementation to compare with")

CONTEXT, BLOCK, TOLERANCE = 64, 6, 1e-3
COMMITTED = (9, 1, 6, 3, 2, 1, 4, 5, 2, 6, 1)
"""rows of context per cycle: the prompt, then one more than the accepted proposals"""
WIDTHS = (6, 6, 4, 2, 6, 6, 3, 6, 5, 6, 6)
"""rows drafted in each cycle: narrower ones leave out steps of the unrolled walk"""

Cycle = tuple[np.ndarray, int, list[int]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetCheckpoint, DrafterCheckpoint]:
    folder = tmp_path_factory.mktemp("pair")
    target = models.write_target(folder / "target")
    return open_target(target), open_drafter(models.write_drafter2(folder / "drafter", target, block=BLOCK))


@pytest.fixture(scope="module")
def graphs(pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> dict[str, Graph]:
    target, drafter = pair
    return {"inject": trace_inject(drafter, target.spec, CONTEXT), "draft": trace_draft(drafter, target.spec, CONTEXT)}


def cycles(width: int) -> list[Cycle]:
    """(taps, position, block) of every cycle."""
    generator = torch.Generator().manual_seed(5)
    found, position = [], 0
    for rows, drafted in zip(COMMITTED, WIDTHS, strict=True):
        taps = torch.randn(rows, width, generator=generator).numpy()
        anchor = int(torch.randint(4, VOCAB, (1,), generator=generator))
        found.append((taps, position, [anchor] + [MASK] * (drafted - 1)))
        position += rows
    return found


@pytest.fixture(scope="module")
def expected(pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> list[tuple[list[int], np.ndarray, np.ndarray]]:
    """(proposals, the likeliest tokens of each row, their logits) of every cycle by the published model."""
    target, drafter = pair
    model = published.DFlash2DraftModel.from_pretrained(drafter.path, dtype=torch.float32).eval()
    cache, scale = published._make_cache(model.config), drafter.spec.embedding_scale
    embedding, head = target.read(EMBEDDING).float(), nn.Linear(target.spec.hidden, VOCAB, bias=False)
    head.weight.data = target.read("lm_head.weight").float()
    found = []
    for taps, position, block in cycles(len(drafter.spec.taps) * target.spec.hidden):
        end = position + len(taps)
        with torch.no_grad():
            hidden = model(
                target_hidden=torch.from_numpy(taps)[None],
                noise_embedding=scale * embedding[block][None],
                position_ids=torch.arange(position, end + len(block))[None],
                past_key_values=cache,
                use_cache=True,
            )[:, 1:]
            published._crop_to(cache, end)
            path, *_ = model.propose(hidden, torch.tensor(block[:1]), head, 0.0)
            unary, tokens = model.compute_logits(hidden, head)[0].topk(model.candidate_selector.top_k)
        found.append((path[0].tolist(), tokens.numpy(), unary.numpy()))
    return found


def compare(
    engine: Cached, drafter: DrafterCheckpoint, hidden: int, expected: list[tuple[list[int], np.ndarray, np.ndarray]]
) -> None:
    moved = 0
    for (taps, position, block), (path, tokens, _) in zip(
        cycles(len(drafter.spec.taps) * hidden), expected, strict=True
    ):
        engine.inject(taps, position)
        scores = engine.draft(block, position + len(taps))
        assert scores.argmax(-1).tolist() == path
        assert all(
            set(np.flatnonzero(row > -1e30)) == set(likeliest) for row, likeliest in zip(scores, tokens, strict=True)
        )
        moved += sum(token != likeliest[0] for token, likeliest in zip(path, tokens, strict=True))
        assert np.isfinite(scores).all()
    assert moved >= 10, "a selector that always takes the likeliest token proves nothing"


def test_the_traced_modules_are_the_published_drafter(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint],
    graphs: dict[str, Graph],
    expected: list[tuple[list[int], np.ndarray, np.ndarray]],
) -> None:
    signatures = {role: graph.signature for role, graph in graphs.items()}
    target, drafter = pair
    with torch_drafter(drafter, target, signatures, CONTEXT) as calls:
        compare(Cached(signatures["inject"], calls["inject"], calls["draft"]), drafter, target.spec.hidden, expected)
    wrong = replace(drafter, spec=replace(drafter.spec, windows=(6, 6)))
    with torch_drafter(wrong, target, signatures, CONTEXT) as calls, pytest.raises(AssertionError):
        compare(Cached(signatures["inject"], calls["inject"], calls["draft"]), drafter, target.spec.hidden, expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_lowered_form_is_the_published_drafter(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint],
    graphs: dict[str, Graph],
    expected: list[tuple[list[int], np.ndarray, np.ndarray]],
    form: str,
    tmp_path: Path,
) -> None:
    target, drafter = pair
    sources = {"target": target.tensors, "drafter": drafter.tensors}
    calls = [ort_call(bound(graphs[role], form, sources, tmp_path)) for role in ("inject", "draft")]
    compare(Cached(graphs["inject"].signature, *calls), drafter, target.spec.hidden, expected)


def test_a_bundle_answers_as_plain_decoding_does(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="selector"):
        build(*pair, tmp_path / "refined", BuildOptions(engine={"refine": 1}))
    with load(build(*pair, tmp_path / "bundle", BuildOptions(precision="int8", context=CONTEXT))) as session:
        assert list(session.tokens([5, 6, 7], max_new_tokens=24, block=BLOCK)) == list(
            session.tokens([5, 6, 7], max_new_tokens=24, draft=False)
        )
        assert session.statistics.tokens
