"""ONNX Runtime engines on tiny real graphs, against the same models in numpy."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from tiny import (
    BLOCK,
    CONTEXT,
    DRAFTER,
    EXACT,
    HIDDEN,
    MASK,
    TARGET,
    VOCAB,
    edit_manifest,
    reference,
    reference_logits,
    write_manifest,
)

from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.backends.onnxruntime import backend
from dflash_compile.runtime.backends.onnxruntime import library as _ort_library
from dflash_compile.runtime.backends.onnxruntime.graph import Buffer
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import BundleError, IncompatibleError, UsageError
from dflash_compile.runtime.policy.controller import CyclePlan

PROMPT = list(b"the quick brown fox")


@pytest.fixture
def engines(tiny_bundle):
    return find_backend("onnxruntime").open_engines(open_bundle(tiny_bundle), EngineOptions())


def target_choices(tokens):
    hidden = TARGET.embedding[tokens]
    return reference_logits(TARGET, reference(TARGET, hidden, hidden[:0])).argmax(-1).tolist()


def test_target_equals_numpy_in_any_widths(engines):
    expected = target_choices(PROMPT)
    assert engines.target.prefill(PROMPT[:7], 0) == expected[6]
    assert engines.target.verify(PROMPT[7:12], 7) == expected[7:12]
    assert engines.target.verify(PROMPT[12:13], 12) == expected[12:13]
    assert engines.target.verify(PROMPT[13:], 13) == expected[13:]


def test_rows_are_verified_in_pairs(engines, monkeypatch):
    seen = []
    run = type(engines.target)._verify_impl
    monkeypatch.setattr(
        type(engines.target),
        "_verify_impl",
        lambda self, block, *rest: seen.append(len(block)) or run(self, block, *rest),
    )
    engines.target.prefill(PROMPT[:7], 0)
    for width in range(1, BLOCK + 1):
        assert engines.target.verify(PROMPT[7 : 7 + width], 7) == target_choices(PROMPT)[7 : 7 + width]
        assert engines.target.taps.rows == width
    assert seen == [width + width % 2 for width in range(1, BLOCK + 1)]
    assert engines.target.fitting(CONTEXT - 3) == 2, "three rows would be four"


def test_rollback_is_a_smaller_position(engines):
    engines.target.prefill(PROMPT[:7], 0)
    engines.target.verify(list(b"zzzzzz"), 7)
    assert engines.target.verify(PROMPT[7:12], 7) == target_choices(PROMPT)[7:12]


def test_taps_are_handed_over_where_they_were_written(engines):
    engines.target.prefill(PROMPT, 0)
    taps = engines.target.taps
    assert taps.rows == len(PROMPT)
    assert np.array_equal(taps.memory.read((len(PROMPT), HIDDEN)), TARGET.embedding[PROMPT])
    engines.target.verify(PROMPT[:3], 10)
    assert engines.target.taps.memory.address == taps.memory.address
    assert engines.target.taps.rows == 3


def test_drafter_equals_numpy_after_partial_injects(engines):
    target, drafter = engines.target, engines.drafter
    target.prefill(PROMPT[:10], 0)
    drafter.inject(target.taps, 10, 0)
    for position, accepted in ((10, 3), (13, 1), (14, 5)):
        anchor = PROMPT[position]
        block = np.array([anchor] + [MASK] * (BLOCK - 1))
        hidden = reference(DRAFTER, DRAFTER.embedding[block], TARGET.embedding[PROMPT[:position]])
        assert drafter.draft(anchor, position, BLOCK) == reference_logits(DRAFTER, hidden)[1:].argmax(-1).tolist()
        assert drafter.draft(anchor, position, 3) == reference_logits(DRAFTER, hidden)[1:3].argmax(-1).tolist()
        target.verify(PROMPT[position : position + accepted], position)
        drafter.inject(target.taps, accepted, position)


def test_a_drafter_tells_the_softmax_of_its_choices(engines):
    target, drafter = engines.target, engines.drafter
    target.prefill(PROMPT[:10], 0)
    drafter.inject(target.taps, 10, 0)
    block = np.array([PROMPT[10]] + [MASK] * (BLOCK - 1))
    logits = reference_logits(DRAFTER, reference(DRAFTER, DRAFTER.embedding[block], TARGET.embedding[PROMPT[:10]]))[1:]
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    wanted = (odds.max(-1) / odds.sum(-1)).tolist()
    assert drafter.reports_confidence
    drafter.draft(PROMPT[10], 10, BLOCK)
    assert [drafter.confidence(slot) for slot in range(BLOCK - 1)] == pytest.approx(wanted, rel=1e-4)
    assert drafter.confidence(1) == pytest.approx(wanted[1], rel=1e-4), "asked once more"


@pytest.mark.parametrize(
    ("top", "rest", "chance"),
    [(1e4, -1e4, 1.0), (-1e4, -1e4, 1 / VOCAB), (np.nan, np.nan, 0.0), (np.inf, 0.0, 0.0), (0.0, -np.inf, 1.0)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_confidence_is_a_number_whatever_the_logits_are(engines, top, rest, chance, dtype):
    engines.target.prefill(PROMPT[:10], 0)
    engines.drafter.inject(engines.target.taps, 10, 0)
    engines.drafter.draft(PROMPT[10], 10, 2)
    logits = np.full((1, VOCAB), rest, dtype)
    logits[0, 5] = top
    engines.drafter._drafted, engines.drafter._chosen = logits, [5]
    with np.errstate(all="raise", under="ignore", invalid="ignore"):
        assert engines.drafter.confidence(0) == pytest.approx(chance)


def test_a_session_verifies_as_many_rows_as_its_controller_chooses(tiny_bundle, monkeypatch):
    with load(tiny_bundle) as session:
        plain = list(session.tokens(list(b"the quick"), draft=False))
        asked = []
        monkeypatch.setattr(
            type(session._adaptive), "plan", lambda self, most, match: CyclePlan(min(4, most), drafted=most > 1)
        )
        monkeypatch.setattr(
            type(session._adaptive),
            "choose_verify_rows",
            lambda self, plan, chance: asked.append(chance(plan.width - 2)) or 2,
        )
        assert list(session.tokens(list(b"the quick"))) == plain
        offered = session.statistics.offered_at
    assert offered[0] == len(asked) > 0
    assert not any(offered[1:])
    assert all(0 < chance <= 1 for chance in asked)


def test_inject_writes_its_rows_and_no_other(engines):
    engines.target.prefill(PROMPT, 0)
    for rows, position in ((10, 0), (2, 40), (10, 60)):
        engines.drafter.inject(engines.target.taps, rows, position)
    keys = engines.drafter._caches["k_cache_0"].read((CONTEXT, 8))
    written = np.flatnonzero(np.abs(keys).sum(-1)).tolist()
    assert written == [*range(10), 40, 41, *range(60, 70)]


def test_drafted_text_equals_plain_text(tiny_bundle):
    with load(tiny_bundle) as session:
        accepted = 0
        for prompt in (b"a", b"the quick", b"x" * 70, b"\xf0\x9f\x98\x80 and so on", b"z" * (CONTEXT - 3)):
            drafted = list(session.tokens(list(prompt), block=session.manifest.pairing.block))
            accepted += session.statistics.accepted
            assert session.statistics.finish == "length"
            assert list(session.tokens(list(prompt))) == drafted, "widths chosen on the way change nothing"
            assert drafted == list(session.tokens(list(prompt), draft=False))
            assert len(drafted) == CONTEXT - len(prompt) - EXACT + 2
        assert accepted > 0, "the models are made so that some proposals stand"


def test_requests_share_nothing(tiny_bundle):
    with load(tiny_bundle) as session:
        first = list(session.tokens(list(b"one"), max_new_tokens=20))
        list(session.tokens(list(b"another, longer prompt"), max_new_tokens=40))
        assert list(session.tokens(list(b"one"), max_new_tokens=20)) == first
    with load(tiny_bundle) as session:
        assert list(session.tokens(list(b"one"), max_new_tokens=20)) == first


def test_a_cycle_allocates_nothing(tiny_bundle):
    with load(tiny_bundle) as session:
        list(session.tokens(PROMPT, max_new_tokens=60))
        tracemalloc.start()
        try:
            tokens = session.tokens(PROMPT, max_new_tokens=60)
            for _ in range(10):
                next(tokens)
            before = tracemalloc.take_snapshot()
            tokens_left = sum(1 for _ in tokens)
            after = tracemalloc.take_snapshot()
        finally:
            tracemalloc.stop()
        assert tokens_left == 50
        grown = sum(
            entry.size_diff
            for entry in after.compare_to(before, "filename")
            if "dflash_compile" in entry.traceback[0].filename or "/runtime/" in entry.traceback[0].filename
        )
        assert grown < 16_000, "less than one block of logits"


def test_loads_and_the_apps_own_sessions_live_side_by_side(tiny_bundle):
    script = f"""
import onnxruntime
from dflash_compile.runtime import load
first, second = load({str(tiny_bundle)!r}, threads=1), load({str(tiny_bundle)!r}, threads=2)
onnxruntime.InferenceSession({str(tiny_bundle / "target/target.onnx")!r})
assert list(first.tokens([1, 2], max_new_tokens=9)) == list(second.tokens([1, 2], max_new_tokens=9))
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_idle_sessions_do_not_spin(tiny_bundle):
    script = f"""
import time
from dflash_compile.runtime import load
session = load({str(tiny_bundle)!r}, threads=3)
list(session.tokens([1, 2], max_new_tokens=20))
used = time.process_time()
time.sleep(0.5)
assert time.process_time() - used < 0.1, time.process_time() - used
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_pool_the_app_made_serves_us(tiny_bundle):
    script = f"""
import onnxruntime
from dflash_compile.runtime import load
onnxruntime.set_global_thread_pool_sizes(1, 1)
options = onnxruntime.SessionOptions()
options.use_per_session_threads = False
session = onnxruntime.InferenceSession({str(tiny_bundle / "target/target.onnx")!r}, options)
assert len(list(load({str(tiny_bundle)!r}).tokens([1, 2], max_new_tokens=9))) == 9
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("threads", [0, -1, 100_000, 2**40, 1.5, "2"])
def test_threads_that_no_machine_has_are_refused(tiny_bundle, threads):
    with pytest.raises(UsageError, match="threads"):
        load(tiny_bundle, threads=threads)


@pytest.mark.parametrize("options", [{"max_new_tokens": "3"}, {"max_new_tokens": 1.5}, {"block": "2"}], ids=str)
def test_numbers_of_the_wrong_kind_are_refused(tiny_bundle, options):
    with load(tiny_bundle) as session, pytest.raises(UsageError, match=next(iter(options))):
        session.tokens([1], **options)


def test_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(IncompatibleError) as caught:
        _ort_library.import_library()
    assert 'pip install "dflash-compile[cpu]"' in caught.value.fix


def test_both_distributions_are_noted(monkeypatch):
    monkeypatch.setattr(_ort_library, "version", lambda name: "1.32.0")
    found = backend.installed()
    assert set(found.versions) == {"onnxruntime", "onnxruntime-gpu"}
    assert "both installed" in found.notes[0]


def test_a_device_that_is_not_there(tiny_bundle):
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has CUDA")
    with load(tiny_bundle, provider="cuda") as session:
        assert any("CPU" in note for note in session.notes)
        assert len(list(session.tokens([1, 2], max_new_tokens=3))) == 3
    with pytest.raises(UsageError, match="tpu"):
        load(tiny_bundle, provider="tpu")


class Card:
    """ONNX Runtime with a CUDA device: memory of its own, reached only by copies, which the CPU computes on; `broken`
    is what it says where there is none.
    """

    def __init__(self, broken: str = "") -> None:
        import onnxruntime

        self.real, self.broken, self.asked = onnxruntime, broken, []
        self.OrtValue = SimpleNamespace(ortvalue_from_numpy=self._put)
        self.SessionOptions = onnxruntime.SessionOptions

    def get_available_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def InferenceSession(self, file, options, providers):  # noqa: N802
        self.asked.append(providers)
        session = self.real.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return SimpleNamespace(
            get_inputs=session.get_inputs,
            get_outputs=session.get_outputs,
            io_binding=lambda: _Binding(session.io_binding()),
            run_with_iobinding=lambda binding: session.run_with_iobinding(binding.real),
        )

    def _put(self, array, device, number):
        if device == "cuda" and self.broken:
            raise RuntimeError(self.broken)
        return self.real.OrtValue.ortvalue_from_numpy(array.copy() if device == "cuda" else array, "cpu", number)


class _Binding:
    def __init__(self, real) -> None:
        self.real = real

    def bind_input(self, name, device, *more):
        assert device == "cuda", f"{name} is left on the host"
        self.real.bind_input(name, "cpu", *more)

    def bind_output(self, name, device, *more):
        assert device == "cuda", f"{name} is left on the host"
        self.real.bind_output(name, "cpu", *more)


def test_on_a_cuda_device_the_text_is_the_same(tiny_bundle, monkeypatch):
    with load(tiny_bundle) as session:
        expected = list(session.tokens([1, 2, 3], max_new_tokens=12))
    card = Card()
    monkeypatch.setattr(backend, "import_library", lambda: card)
    with load(tiny_bundle, provider="cuda") as session:
        assert list(session.tokens([1, 2, 3], max_new_tokens=12)) == expected
        assert list(session.tokens([1, 2, 3], max_new_tokens=12, draft=False)) == expected
        assert not session.notes
    assert card.asked == [["CUDAExecutionProvider", "CPUExecutionProvider"]] * 3


def test_onnxruntime_gpu_without_a_card_runs_on_the_cpu_and_says_so(tiny_bundle, monkeypatch):
    card = Card(broken="CUDA failure 100: no CUDA-capable device is detected.\nat somewhere")
    assert _ort_library.choose_provider(card, EngineOptions()) == ("cpu", ()), (
        "and says nothing where nobody asked for it"
    )
    device, (note,) = _ort_library.choose_provider(card, EngineOptions(provider="cuda"))
    assert device == "cpu"
    assert "running on the CPU" in note
    assert "no CUDA-capable device is detected." in note
    assert "driver" in note
    assert "somewhere" not in note


def test_an_engine_that_is_not_what_the_manifest_says(tiny_bundle):
    edit_manifest(
        tiny_bundle, lambda document: document["target"]["graphs"][0]["outputs"][1]["shape"].__setitem__(2, HIDDEN * 2)
    )
    with pytest.raises(BundleError, match="port taps"):
        load(tiny_bundle)


def test_a_cache_shorter_than_the_context(tiny_bundle):
    edit_manifest(tiny_bundle, lambda document: document.__setitem__("context", CONTEXT + 1))
    with pytest.raises(BundleError, match="too short"):
        load(tiny_bundle)


def test_buffers_keep_what_lies_behind_a_write():
    import onnxruntime

    host = Buffer(onnxruntime, "cpu", (4,), "int32")
    host.write([1, 2, 3, 4])
    host.write([9])
    assert host.read((2, 2)).tolist() == [[9, 2], [3, 4]]
    assert host.address % 64 == 0
    # What a device buffer does, with the host standing in for the device.
    device = Buffer(onnxruntime, "cpu", (4,), "int32")
    device._host = None
    device.write([1, 2, 3, 4])
    device.write([9])
    assert device.read((2, 2)).tolist() == [[9, 2], [3, 4]]
    with pytest.raises(IncompatibleError):
        Buffer(onnxruntime, "cpu", (1,), "bfloat16")


def test_vocabulary_edge(engines):
    assert len(engines.target.verify([VOCAB - 1, 0], 0)) == 2


def test_weights_outside_the_bundle_are_not_read(tiny_bundle):
    """A graph may name a file for its weights; one beyond its folder is refused even where every hash is right."""
    manifest = open_bundle(tiny_bundle).manifest
    file = tiny_bundle / "target/target.onnx"
    model = onnx.load(file)
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "head")
    (tiny_bundle.parent / "secret").write_bytes(tensor.raw_data)
    onnx.external_data_helper.set_external_data(tensor, location="../../secret")
    tensor.ClearField("raw_data")
    file.write_bytes(model.SerializeToString())
    write_manifest(tiny_bundle, manifest)
    with pytest.raises(BundleError, match="cannot load"):
        load(tiny_bundle)
