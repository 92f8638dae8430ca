"""On an NVIDIA RTX card (`make test-gpu`): numbers, capture, losslessness, and a table of speed to read.

The numbers are compared with the very graphs that were compiled, run by ONNX Runtime on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import pytest
from emitted import Emitted, lowered

from dflash_compile.compile.options import BuildOptions
from dflash_compile.compile.pair_sizes import decide
from dflash_compile.compile.tensorrt.roles import roles_of
from dflash_compile.compile.tensorrt.traced import trace_all
from dflash_compile.export import open_drafter, open_target
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions
from dflash_compile.runtime.backends.tensorrt.backend import kernels_entry, open_engines
from dflash_compile.runtime.backends.tensorrt.bitwise import equal_widths
from dflash_compile.runtime.backends.tensorrt.device import CudaDevice
from dflash_compile.runtime.backends.tensorrt.pair import Pair
from dflash_compile.runtime.backends.tensorrt.plan import Library, Plan
from dflash_compile.runtime.bundle.read import Bundle, open_bundle

pytestmark = pytest.mark.gpu

PROMPT = list(range(20, 31))
BLOCK, TOLERANCE = 4, 5e-3
QUESTIONS = ("Why is the sky blue?", "Write a Python function that adds two numbers.", "List five colours.")


def open_pair(bundle: Bundle) -> Pair:
    """The engines of a bundle, each to be run by itself."""
    device = CudaDevice()
    library = Library("tensorrt_rtx", device, None)
    return Pair(
        bundle.manifest,
        device.arch,
        device,
        lambda record, whole: Plan(library, bundle.file(record.file), record, whole),
        bundle.file,
    )


@pytest.fixture
def pair(tiny_bundle: Path) -> Iterator[Pair]:
    found = open_pair(open_bundle(tiny_bundle))
    yield found
    found.close()


@pytest.fixture(scope="module")
def emitted(arch: str, tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Emitted:
    models = decide(open_target(tiny_pair[0]), open_drafter(tiny_pair[1]), BuildOptions(context=90))
    traced = trace_all(models, roles_of(models), lambda *_: None)
    return Emitted(models, lowered(traced, "fp16", arch), tmp_path_factory.mktemp("graphs"))


def floats(pair: Pair, name: str, count: int) -> np.ndarray:
    """float32 values at the front of a buffer."""
    pinned = pair.device.pinned(count)
    pair.device.read_into(pinned, pair.buffers[name])
    pair.device.mark()()
    return pinned.view(np.float32).copy()


def test_every_engine_can_be_captured(pair: Pair) -> None:
    assert pair.captures
    assert all(plan.capturable for plan in pair.plans.values())


def test_numbers_are_those_of_the_graphs_that_were_compiled(pair: Pair, emitted: Emitted) -> None:
    anchor = emitted.prefill(PROMPT)
    pair.write("tokens", [*PROMPT, *[0] * (pair.chunk - len(PROMPT))])
    pair.write("position", [0])
    pair.write("valid", [len(PROMPT)])
    pair.run("prefill", pair.chunk)
    assert pair.read("next_token", 1) == [anchor]
    pair.run("inject", pair.chunk)
    for right in (3, 0, 2):
        position = emitted.position
        at = np.array([position], np.int32)
        drafted = emitted.draft(anchor, position).tolist()
        pair.write("anchor", [anchor])
        pair.write("position", [position])
        pair.run("draft", BLOCK)
        assert pair.read("block", BLOCK) == drafted
        block = [anchor]
        while len(block) < BLOCK:  # a block of which the target accepts the first `right` proposals
            emitted.position = position
            choice = int(emitted.verify([*block, *[0] * (BLOCK - len(block))])["tokens"][0][len(block) - 1])
            block.append(choice if len(block) <= right else (choice + 1) % 300)
        emitted.position = position
        out = emitted.verify(block)
        pair.write("block", block)
        pair.run("verify", BLOCK)
        assert pair.read("tokens", BLOCK) == out["tokens"][0].tolist()
        assert (pair.read("accepted", 1), pair.read("next_position", 1)) == ([right], [emitted.position])
        taps = floats(pair, "taps", out["taps"].size).reshape(out["taps"].shape)
        np.testing.assert_allclose(taps, out["taps"], rtol=0, atol=TOLERANCE * np.abs(out["taps"]).max())
        emitted.run("inject", taps=out["taps"], position=at)
        pair.run("inject", BLOCK)
        anchor = int(out["bonus"][0])


def test_the_cycle_in_one_graph_gives_what_single_steps_give(tiny_bundle: Path) -> None:
    with load(tiny_bundle) as session:
        whole = list(session.tokens(PROMPT, max_new_tokens=60, block=BLOCK))
        steps = list(session.tokens(PROMPT, max_new_tokens=60, block=BLOCK - 1))
        narrow = list(session.tokens(PROMPT, max_new_tokens=60, block=2))
        chosen = list(session.tokens(PROMPT, max_new_tokens=60))
        plain = list(session.tokens(PROMPT, max_new_tokens=60, draft=False))
    assert whole == steps == narrow == chosen == plain


def test_many_cycles_in_one_launch_give_the_same(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether TensorRT's engines can be captured into a while node is documented nowhere: where they cannot, the reason
    is printed.
    """
    with load(tiny_bundle) as single, load(tiny_bundle, device_loop=8) as looped:
        refused = [note for note in looped.notes if "device_loop" in note]
        for count, options in (
            (60, {"block": BLOCK}),
            (60, {"block": 2}),
            (60, {}),
            (7, {"block": BLOCK}),
            (1000, {"block": BLOCK}),
        ):
            expected = list(single.tokens(PROMPT, max_new_tokens=count, **options))  # type: ignore[arg-type]
            assert list(looped.tokens(PROMPT, max_new_tokens=count, **options)) == expected  # type: ignore[arg-type]
            if "block" in options:
                found, known = looped.statistics, single.statistics
                assert (found.cycles, found.accepted_at, found.finish) == (
                    known.cycles,
                    known.accepted_at,
                    known.finish,
                )
        assert list(looped.tokens(PROMPT, max_new_tokens=60, draft=False)) == list(
            single.tokens(PROMPT, max_new_tokens=60, draft=False)
        )
    with capsys.disabled():
        sys.stdout.write(f"\na loop on the device: {refused[0] if refused else 'runs'}\n")


def test_which_widths_round_alike(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """Reported: nothing promises that they do, and those that do not are left aside."""
    assert pair.widths == [2, BLOCK]
    equal = equal_widths(pair)
    assert equal[-1] == BLOCK
    with capsys.disabled():
        sys.stdout.write(f"\nwidths of verify that give one another's bits: {equal} of {pair.widths}\n")


def test_text_is_the_target_s_own(real_bundle: Path) -> None:
    with load(real_bundle) as session:
        for question in QUESTIONS:
            drafted = list(session.tokens(question, max_new_tokens=200))
            assert drafted == list(session.tokens(question, max_new_tokens=200, draft=False)), question
            assert drafted == list(
                session.tokens(question, max_new_tokens=200, block=session.manifest.pairing.block)
            ), question
            assert session.statistics.tau >= 1


def test_how_often_the_narrowest_verify_chooses_the_same(real_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another width is another program and may round otherwise: reported, and bounded from below."""
    with load(real_bundle) as session:
        tokens = list(session.tokens(QUESTIONS[0], max_new_tokens=100, draft=False))
    pair, same = open_pair(open_bundle(real_bundle)), 0
    narrow, block = pair.widths[0], pair.block
    for position, token in enumerate(tokens):
        choices = []
        for rows in (block, narrow):
            pair.write("block", [token] * rows)
            pair.write("position", [position])
            pair.run("verify", rows)
            choices.append(pair.read("tokens", 1))
        same += choices[0] == choices[1]
    pair.close()
    with capsys.disabled():
        sys.stdout.write(f"\n{narrow} rows agree with a block's first row in {same} of {len(tokens)} choices\n")
    assert same >= 0.9 * len(tokens)


def test_compiled_kernels_are_kept_for_the_next_start(tiny_bundle: Path, arch: str, tmp_path: Path) -> None:
    bundle, options = open_bundle(tiny_bundle), EngineOptions(cache=tmp_path)
    open_engines(bundle, options).close()
    device = CudaDevice()
    file = tmp_path / kernels_entry(bundle, arch, device.name)
    device.close()
    assert file.stat().st_size > 0
    open_engines(bundle, options).close()


def test_speed_of_a_loop_on_the_device(real_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside single cycles, by turns; nothing is asserted of speed."""
    rates: dict[int | None, list[float]] = {None: [], 4: [], 16: []}
    texts: dict[str, list[int]] = {}
    for cycles in [*rates] * 2:
        with load(real_bundle, device_loop=cycles) as session:
            for question in QUESTIONS:
                began = perf_counter()
                tokens = list(session.tokens(question, max_new_tokens=200, block=session.manifest.pairing.block))
                rates[cycles].append(len(tokens) / (perf_counter() - began))
                assert tokens == texts.setdefault(question, tokens)
    with capsys.disabled():
        sys.stdout.write(
            "".join(
                f"\n{real_bundle.name}, {cycles or 1} cycles a launch: {median(found):.0f} tok/s"
                for cycles, found in rates.items()
            )
            + "\n"
        )


def test_speed(real_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table to read, by turns; nothing is asserted of it."""
    rates: dict[str, list[float]] = {"drafting": [], "plain": []}
    with load(real_bundle) as session:
        block = session.manifest.pairing.block
        for question in QUESTIONS * 3:
            for name, options in (("drafting", {"block": block}), ("plain", {"draft": False})):
                began = perf_counter()
                count = len(list(session.tokens(question, max_new_tokens=200, **options)))  # type: ignore[arg-type]
                rates[name].append(count / (perf_counter() - began))
            tau = session.statistics.tau
    drafted, plain = (median(values) for values in rates.values())
    with capsys.disabled():
        sys.stdout.write(
            f"\n{real_bundle.name}: {drafted:.0f} tok/s drafting, {plain:.0f} plain, {drafted / plain:.2f} times; last"
            f" tau {tau:.2f}\n"
        )
