"""The graphs that TensorRT compiles, run by ONNX Runtime: against the torch modules they were traced from, and against
a CPU bundle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import models as tiny
import numpy as np
import pytest
from emitted import Array, Emitted, ints, lowered
from forms import Cached, torch_drafter, torch_target

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.pair_sizes import Models, decide
from dflash_compile.compile.tensorrt.options import Options
from dflash_compile.compile.tensorrt.roles import cache_rows, roles_of
from dflash_compile.compile.tensorrt.traced import Traced, lower_all, trace_all
from dflash_compile.export.opening import open_drafter, open_target
from dflash_compile.export.tracing.signature import draft_signature, inject_signature, target_signature
from dflash_compile.export.tracing.trace import shares_table
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS

CONTEXT, BLOCK, ANCHOR = 90, 4, 33
PROMPT = list(range(20, 31))
TOLERANCE = 5e-3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A target with grouped heads, and a drafter one of whose layers has a window that looks both ways."""
    folder = tmp_path_factory.mktemp("pair")
    target = tiny.write_target(folder / "target", "qwen3", num_hidden_layers=3)
    layers = {
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 5,
        "use_sliding_window": True,
        "is_causal": False,
    }
    drafter = tiny.write_drafter(folder / "drafter", target, block=BLOCK, **layers)
    return decide(open_target(target), open_drafter(drafter), BuildOptions(context=CONTEXT))


@pytest.fixture(scope="module")
def traced(pair: Models) -> tuple[Traced, ...]:
    return trace_all(pair, roles_of(pair), lambda *_: None)


class Reference:
    """The same pair in torch, in float32."""

    def __init__(self, models: Models, stack: ExitStack) -> None:
        target, drafter, rows = models.target.spec, models.drafter.spec, cache_rows(models)
        width = len(drafter.taps) * target.hidden
        cached = (drafter.layers, drafter.kv_heads, drafter.head_dim, rows)
        signature = target_signature(target.layers, target.kv_heads, target.head_dim, rows, target.vocab, width)
        signatures = {"inject": inject_signature(*cached, width), "draft": draft_signature(*cached, target.vocab)}
        self.target = Cached(signature, stack.enter_context(torch_target(models.target, signature, drafter.taps, rows)))
        calls = stack.enter_context(torch_drafter(models.drafter, models.target, signatures, rows))
        self.drafter = Cached(signatures["inject"], calls["inject"], calls["draft"])


@pytest.fixture
def reference(pair: Models) -> Iterator[Reference]:
    with ExitStack() as stack:
        yield Reference(pair, stack)


@pytest.fixture(scope="module", params=["fp16-sm89", "fp16-sm86", "fp32-sm86"])
def half(
    request: pytest.FixtureRequest, pair: Models, traced: tuple[Traced, ...], tmp_path_factory: pytest.TempPathFactory
) -> Emitted:
    precision, arch = request.param.split("-")
    return Emitted(pair, lowered(traced, precision, arch), tmp_path_factory.mktemp("graphs"))


@pytest.fixture(scope="module")
def wide(pair: Models, traced: tuple[Traced, ...], tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    return Emitted(pair, lowered(traced, "fp32", "sm89"), tmp_path_factory.mktemp("graphs"))


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TOLERANCE * np.abs(wanted).max())


def test_half_precision_follows_torch_over_a_trace_of_accepts_and_rejects(
    half: Emitted, reference: Reference, pair: Models
) -> None:
    anchor = half.prefill(PROMPT)
    logits, taps = reference.target.verify(PROMPT, 0)
    reference.drafter.inject(taps, 0)
    assert anchor == logits[-1].argmax()
    for right in (BLOCK - 1, 0, 2, 1):
        position = half.position
        proposed = half.draft(anchor, position)
        assert proposed[0] == anchor
        drafted = reference.drafter.draft([anchor, *[pair.drafter.spec.mask_id] * (BLOCK - 1)], position)
        margins = np.sort(drafted, -1)[:, -1] - drafted[np.arange(BLOCK - 1), proposed[1:]]
        assert (margins <= TOLERANCE * np.abs(drafted).max()).all(), "proposals are torch's, or all but equal to them"
        block = [anchor, *correct(reference, anchor, position, right)]
        out = half.verify(block)
        logits, taps = reference.target.verify(block, position)
        assert out["tokens"][0].tolist() == logits.argmax(-1).tolist()
        assert (int(out["accepted"][0]), int(out["next_position"][0])) == (right, position + right + 1)
        assert int(out["bonus"][0]) == logits[right].argmax()
        close(out["taps"][0], taps)
        half.run("inject", taps=out["taps"], position=ints(position))
        reference.drafter.inject(taps, position)
        end = position + right + 1
        for side, name in ((half.caches["target"], "k_cache_2"), (half.caches["drafter"], "v_cache_1")):
            kept = reference.target.caches if side is half.caches["target"] else reference.drafter.caches
            close(side[name][:, :, :end].astype(np.float32), kept[name][:, :, :end])
        anchor = int(out["bonus"][0])


def correct(reference: Reference, anchor: int, position: int, right: int) -> list[int]:
    """Proposals of which the target will accept the first `right` and no more."""
    proposals: list[int] = []
    for slot in range(BLOCK - 1):
        logits, _ = reference.target.verify([anchor, *proposals], position)
        choice = int(logits[-1].argmax())
        proposals.append(choice if slot < right else (choice + 1) % 300)
    return proposals


def test_no_engine_holds_weights_of_another(traced: tuple[Traced, ...]) -> None:
    """Of the checkpoints' tensors, each is in one engine; but the drafter's K and V, which inject and draft project."""
    held = {one.role.name: set(one.semantic.weights) for one in traced}
    assert held["embed"] == held["head"] == {"target.model.embed_tokens.weight"}, "tied: one table"
    assert not (held["embed"] | held["head"]) & held["body"]
    assert all(name.startswith("target.model.") for name in held["body"])
    assert all(name.startswith("drafter.") for role in ("inject", "draft") for name in held[role])
    twice = held["inject"] & held["draft"]
    assert all(".k_" in name or ".v_proj" in name for name in twice), twice


def test_two_rows_at_a_time_give_what_a_block_gives(wide: Emitted) -> None:
    anchor = wide.prefill(PROMPT)
    plain, position = [anchor], wide.position
    for _ in range(BLOCK):
        out = wide.verify([plain[-1], plain[-1]])
        wide.position = position + len(plain)  # the second row is nobody's
        plain.append(int(out["tokens"][0, 0]))
    wide.position = position
    out = wide.verify(plain[:BLOCK])
    assert (out["tokens"][0].tolist(), int(out["accepted"][0])) == (plain[1:], BLOCK - 1)


@pytest.mark.parametrize("arch", ["sm89", "sm86"])
def test_every_width_gives_the_first_rows_of_the_widest(
    arch: str, pair: Models, traced: tuple[Traced, ...], tmp_path: Path
) -> None:
    free = Emitted(pair, lowered(traced, "fp32", arch), tmp_path)
    anchor = free.prefill(PROMPT)
    position, caches = free.position, free.caches["target"]
    block = [anchor]
    while len(block) < BLOCK:  # of which the first two proposals stand
        free.position, free.caches["target"] = position, caches
        choice = int(free.verify([*block, *[0] * (BLOCK - len(block))])["tokens"][0][len(block) - 1])
        block.append(choice if len(block) < BLOCK - 1 else (choice + 1) % 300)
    free.position, free.caches["target"] = position, caches
    widest = free.verify(block)
    for rows in (3, 2):
        free.position, free.caches["target"] = position, caches
        out = free.verify(block[:rows])
        assert out["tokens"][0].tolist() == widest["tokens"][0].tolist()[:rows]
        accepted = min(rows - 1, BLOCK - 2)
        assert (out["accepted"].tolist(), out["next_position"].tolist()) == ([accepted], [position + accepted + 1])
        assert int(out["bonus"][0]) == widest["tokens"][0][accepted]
        close(out["taps"][0], widest["taps"][0, :rows])


def test_a_whole_answer_equals_the_cpu_bundle_s(wide: Emitted, pair: Models, tmp_path: Path) -> None:
    bundle = build(pair.target, pair.drafter, tmp_path / "bundle", BuildOptions(precision="fp32", context=CONTEXT))
    with load(bundle) as session:
        for prompt in (PROMPT, list(range(20, 20 + PREFILL_ROWS + 6)), [40]):  # one chunk, two, one row
            count = CONTEXT - len(prompt) - BLOCK
            expected = list(session.tokens(prompt, max_new_tokens=count, block=BLOCK))
            assert wide.generate(prompt, count)[: len(expected)] == expected
            assert len(expected) > 3


def drafted(emitted: Emitted, models: Models, scored: int) -> tuple[Array, Array]:
    """The block after some context, and torch's logits [B - 1, `scored`] of the same."""
    drafter, spec, rows = models.drafter, models.drafter.spec, cache_rows(models)
    width = len(spec.taps) * models.target.spec.hidden
    cached = (spec.layers, spec.kv_heads, spec.head_dim, rows)
    signatures = {"inject": inject_signature(*cached, width), "draft": draft_signature(*cached, scored)}
    taps = np.random.default_rng(0).standard_normal((BLOCK, width)).astype(np.float32)
    with torch_drafter(drafter, models.target, signatures, rows) as calls:
        reference = Cached(signatures["inject"], calls["inject"], calls["draft"])
        reference.inject(taps, 0)
        logits = reference.draft([ANCHOR, *[spec.mask_id] * (BLOCK - 1)], BLOCK)
    emitted.run("inject", taps=taps[None], position=ints(0))
    block = emitted.draft(ANCHOR, BLOCK)
    assert block[0] == ANCHOR
    return block, logits


def test_a_draft_that_needs_all_logits_is_given_the_target_s_table(pair: Models, tmp_path: Path) -> None:
    """DFlash2, whose selector walks through the candidates; in another precision than the target."""
    drafter = open_drafter(tiny.write_drafter2(tmp_path / "drafter", pair.target.path, block=BLOCK))
    models = decide(pair.target, drafter, BuildOptions(context=CONTEXT))
    engines = lower_all(trace_all(models, roles_of(models), lambda *_: None), Options("int8", "fp32", arch=("sm89",)))
    draft = engines[-1]
    assert [table.name for table in draft.tables] == ["table", "table_scales"]
    assert all(binding.ref.owner == "drafter" for binding in draft.lowered.bindings.values())
    emitted = Emitted(models, engines, tmp_path)
    block, logits = drafted(emitted, models, models.target.spec.vocab)
    assert block[1] == logits[0].argmax(), "what int8 rounds does not reach the first choice"


MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6, "num_hidden_layers": 2}
UNUSUAL: dict[str, dict[str, object]] = {
    "gemma3_text": {**MIXED, "query_pre_attn_scalar": 24, "final_logit_softcapping": 3.0},
    "gpt_oss": {**MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "muse_glimmer": {"num_hidden_layers": 2},
}


@pytest.mark.parametrize("family", UNUSUAL)
def test_targets_with_windows_sinks_and_capped_logits(family: str, tmp_path: Path) -> None:
    target = open_target(tiny.write_target(tmp_path / "target", family, **UNUSUAL[family]))
    plain = tiny.write_target(
        tmp_path / "plain", num_hidden_layers=2
    )  # a drafter's shape is read from a target that z-lab's layout knows
    drafter = open_drafter(tiny.write_drafter(tmp_path / "drafter", plain, layers=1, block=BLOCK, taps=(0,)))
    models = Models(target, drafter, decide(open_target(plain), drafter, BuildOptions(context=CONTEXT)).pairing, BLOCK)
    engines = lowered(trace_all(models, roles_of(models, ("target",)), lambda *_: None), "fp16", "sm89")
    assert [engine.split for engine in engines] == [0, 2 if family == "gpt_oss" else 0, 0]
    emitted = Emitted(models, engines, tmp_path)
    rows, spec = cache_rows(models), target.spec
    signature = target_signature(spec.layers, spec.kv_heads, spec.head_dim, rows, spec.vocab, spec.hidden)
    with torch_target(target, signature, (0,), rows) as call:
        reference = Cached(signature, call)
        for start in range(0, 16, BLOCK):  # past the window
            block = [*range(30 + start, 29 + start + BLOCK), spec.vocab - 1]  # the last stands for pictures, in muse
            emitted.position = start
            out = emitted.verify(block)
            logits, taps = reference.verify(block, start)
            close(out["taps"][0], taps)
            best = np.sort(logits, -1)[:, -1] - logits[np.arange(BLOCK), out["tokens"][0]]
            assert (best <= TOLERANCE * np.abs(logits).max()).all()


def test_a_mask_that_the_target_embeds_as_another_token_keeps_a_table_for_the_draft(tmp_path: Path) -> None:
    muse = open_target(tiny.write_target(tmp_path / "muse", "muse_glimmer", num_hidden_layers=2))
    plain = tiny.write_target(tmp_path / "plain", num_hidden_layers=2)
    spec = open_drafter(tiny.write_drafter(tmp_path / "drafter", plain, layers=1, block=BLOCK, taps=(0,))).spec
    assert shares_table(spec, muse)
    assert not shares_table(replace(spec, mask_id=muse.spec.vocab - 1), muse)


def test_a_draft_whose_anchor_proposes_over_a_reduced_vocabulary(pair: Models, tmp_path: Path) -> None:
    ids = list(range(7, 207, 2))
    drafter = open_drafter(
        tiny.write_speculators(tmp_path / "drafter", pair.target.path, ids, sample_from_anchor=True, block=BLOCK - 1)
    )
    models = decide(pair.target, drafter, BuildOptions(context=CONTEXT))
    assert models.block == BLOCK
    roles = roles_of(models)
    emitted = Emitted(models, lowered(trace_all(models, roles, lambda *_: None), "fp16", "sm86"), tmp_path)
    block, logits = drafted(emitted, models, len(ids))
    chosen = logits[np.arange(BLOCK - 1), [ids.index(token) for token in block[1:]]]
    assert (np.sort(logits, -1)[:, -1] - chosen <= TOLERANCE * np.abs(logits).max()).all()
