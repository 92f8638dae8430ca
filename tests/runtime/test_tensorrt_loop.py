"""Many cycles in one launch, on the GPU in plain Python: where they stop, what the host makes of them, and that the
text stays the target's own.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import VOCAB, continuation
from trt_fakes import ARCH, BLOCK, CONTEXT, ROWS, FakeDevice, committed
from trt_machine import PATTERNS, PROMPT, Machine, Turns

from dflash_compile.compile.tensorrt.loop_kernel import SOURCE
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.backends.tensorrt.backend import check_loop
from dflash_compile.runtime.backends.tensorrt.cycle import Cycle
from dflash_compile.runtime.backends.tensorrt.loop import MOST_ENDS, Kernels, Loop
from dflash_compile.runtime.errors import IncompatibleError, UsageError
from dflash_compile.runtime.policy.controller import PLAIN, AdaptiveWidth, CyclePlan


@pytest.mark.parametrize("cycles", [2, 5])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_text_and_statistics_are_those_of_single_cycles(pattern: str, cycles: int) -> None:
    looped, single = Machine(PATTERNS[pattern], cycles=cycles), Machine(PATTERNS[pattern])
    assert isinstance(looped.engines.cycle, Loop)
    for prompt, count in ((PROMPT, 40), ([9, *PROMPT], 10), (PROMPT, 1)):
        looped.device.log.clear()
        assert looped.answer(prompt, count) == single.answer(prompt, count) == continuation(prompt, count), (
            "whatever was left of the last answer"
        )
        found, expected = looped.record.snapshot(), single.record.snapshot()
        assert (found.cycles, found.offered_at, found.accepted_at) == (
            expected.cycles,
            expected.offered_at,
            expected.accepted_at,
        )
        assert looped.device.log.count("around") == found.cycles, (
            "the device stops where the answer is as long as it may be"
        )
        assert looped.device.log.count("launch") == -(-found.cycles // cycles)
    assert looped.answer(PROMPT, 40, draft=False) == continuation(PROMPT, 40)
    assert looped.answer(PROMPT, 40, width=3) == continuation(PROMPT, 40), "narrower cycles go the plain way"


def test_a_launch_is_one_graph_and_one_copy_back() -> None:
    machine = Machine(cycles=3)
    body = ["embed", "draft", "head", "embed", "verify", "head", "inject", "commit"]
    assert machine.device.graphs == [["begin", *body, "read"]], "and no graph of single cycles"
    machine.answer(PROMPT, 30)
    log = machine.device.log
    around = ["around", *body]
    assert log[log.index("launch") - 3 :] == (["write"] * 3 + ["launch", "begin", *around * 3, "read"]) * 2 + [
        "write"
    ] * 3 + ["launch", "begin"] + [
        *around * 2,
        "read",
    ]
    assert not machine.device.queue, "nothing runs that nobody waits for"


@pytest.mark.parametrize("at", [1, 2, 9, 14, 21])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_device_stops_at_the_end_of_a_sequence(pattern: str, at: int) -> None:
    machine, expected = Machine(PATTERNS[pattern], cycles=6), continuation(PROMPT, 60)
    eos = [expected[at], 77]
    ended = expected[: expected.index(expected[at]) + 1]
    assert machine.answer(PROMPT, 60, eos=eos) == ended
    assert machine.record.finish == "eos"
    assert machine.device.log.count("around") == machine.record.snapshot().cycles
    assert machine.answer(PROMPT, 60) == expected, "and forgets where the last answer was to end"


def test_what_was_computed_behind_an_end_that_only_the_host_knows_is_thrown_away() -> None:
    machine, expected = Machine(PATTERNS["now and then"], cycles=6), continuation(PROMPT, 60)
    eos = [*range(-MOST_ENDS, 0), expected[9]]  # too many for the device, which takes the smallest
    ended = expected[: expected.index(expected[9]) + 1]
    assert machine.answer(PROMPT, 60, eos=eos) == ended
    assert machine.device.log.count("around") == 6 > machine.record.snapshot().cycles
    assert machine.answer([4, *PROMPT], 30) == continuation([4, *PROMPT], 30)


@pytest.mark.parametrize("widths", [(BLOCK,), (2, BLOCK)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_device_stops_where_the_cache_is_full(pattern: str, widths: Sequence[int]) -> None:
    machine = Machine(PATTERNS[pattern], widths=widths, cycles=200)
    room = CONTEXT - len(PROMPT) - machine.engines.target.min_verify_rows + 2
    assert machine.answer(PROMPT, 1000) == continuation(PROMPT, room)
    assert machine.record.finish == "length"
    assert machine.answer(PROMPT, 1000, width=2) == continuation(PROMPT, room)


@pytest.mark.parametrize(("rows", "last"), [(40, 40 - BLOCK), (ROWS, CONTEXT - BLOCK)])
def test_no_cycle_starts_where_the_caches_or_the_context_have_no_room_for_it(rows: int, last: int) -> None:
    machine = Machine(widths=(2, BLOCK), cycles=200)
    cycle = machine.engines.cycle
    assert isinstance(cycle, Loop)
    cycle._rows = rows
    answer = machine.answer(PROMPT, 1)
    cycle.begin(1000, ())
    machine.device.log.clear()
    cycle.run(answer[0], len(PROMPT), BLOCK)
    assert machine.device.log.count("around") == len(range(len(PROMPT), last + 1, BLOCK)), (
        "every one of them is right, and as long as it can be"
    )


@pytest.mark.parametrize("turns", [(2, BLOCK), (BLOCK, PLAIN, 2), (3, 2, BLOCK), (BLOCK, BLOCK, BLOCK, PLAIN)])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_widths_and_plain_cycles_may_come_in_between(turns: tuple[int, ...], pattern: str) -> None:
    machine, expected = Machine(PATTERNS[pattern], widths=(2, BLOCK), cycles=3), continuation(PROMPT, 60)
    controller = Turns(*turns)
    assert machine.answer(PROMPT, 60, controller=controller) == expected
    assert len(set(controller.ran)) > 1
    assert machine.answer(PROMPT, 60, controller=AdaptiveWidth(BLOCK, machine.engines.widths)) == expected


class Watch(Turns):
    """Hears what cycles are said to take."""

    def __init__(self) -> None:
        super().__init__(BLOCK)
        self.seconds: list[float] = []

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        assert seconds >= verify_seconds
        self.seconds.append(verify_seconds)


def test_each_cycle_of_a_launch_is_said_to_take_its_share() -> None:
    machine, watch = Machine(cycles=4), Watch()
    machine.answer(PROMPT, 33, controller=watch)
    assert len(watch.seconds) == 8
    assert [len(set(watch.seconds[start : start + 4])) for start in (0, 4)] == [1, 1]
    assert min(watch.seconds) > 0
    assert sum(watch.seconds) <= machine.record.snapshot().decode_seconds


def _unloadable(_: FakeDevice) -> Kernels:
    raise IncompatibleError("the loop's kernels cannot be loaded", why="an old driver")


def _endless(device: FakeDevice) -> Kernels:
    """As if the body ran once more than it was asked to."""

    def commit(arguments: Sequence[int]) -> None:
        device.commit_loop(arguments)
        device.put("more", lambda: device.at(arguments[6]).__setitem__(0, 2))

    return Kernels(device.begin_loop, commit)


@pytest.mark.parametrize("kernels", [_unloadable, _endless])
def test_a_device_that_cannot_is_driven_by_the_host(kernels: object) -> None:
    machine = Machine(cycles=4, kernels=kernels)  # type: ignore[arg-type]
    assert isinstance(machine.engines.cycle, Cycle)
    assert ["device_loop is left aside" in note for note in machine.engines.notes] == [True]
    assert machine.answer(PROMPT, 40) == continuation(PROMPT, 40)


def test_engines_that_cannot_be_captured_are_driven_by_the_host() -> None:
    machine = Machine(capturable=False, cycles=4)
    assert isinstance(machine.engines.cycle, Cycle)
    assert "cannot capture" in machine.engines.notes[0]
    assert machine.answer(PROMPT, 40) == continuation(PROMPT, 40)


def test_a_bundle_without_the_kernels_is_refused() -> None:
    bundle = SimpleNamespace(root="somewhere", manifest=SimpleNamespace(files={f"drafter/loop.{ARCH}.cubin": ""}))
    check_loop(bundle, ARCH)  # type: ignore[arg-type]
    with pytest.raises(IncompatibleError, match="no kernels for a loop"):
        check_loop(bundle, "sm120")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["onnxruntime", "coreml", "coreai"])
def test_other_back_ends_refuse_it(name: str) -> None:
    with pytest.raises(UsageError, match="device_loop=4"):
        find_backend(name).open_engines(None, EngineOptions(device_loop=4))  # type: ignore[arg-type]


@pytest.mark.parametrize("cycles", [0, 1, 257, 2.5])
def test_no_loop_of_one_cycle_or_of_too_many(cycles: object) -> None:
    with pytest.raises(UsageError, match="from 2 to 256"):
        load("nowhere", device_loop=cycles)  # type: ignore[arg-type]


def test_the_kernel_does_what_it_does_in_python(tmp_path: Path) -> None:
    """The source itself, compiled for the CPU."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler here")
    prelude = 'typedef unsigned long long cudaGraphConditionalHandle;\n#define __global__\nextern "C" int asked = 2;\n'
    prelude += (
        "static void cudaGraphSetConditional(cudaGraphConditionalHandle, unsigned int value) { asked = value; }\n"
    )
    (tmp_path / "loop.cpp").write_text(prelude + SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "loop.so", tmp_path / "loop.cpp"], check=True)
    library = ctypes.CDLL(str(tmp_path / "loop.so"))
    asked, answers = ctypes.c_int.in_dll(library, "asked"), set[int]()
    generator, stride, cycles = np.random.default_rng(0), BLOCK + 1, 3
    for _ in range(200):
        accepted = int(generator.integers(BLOCK))
        position = int(generator.integers(50))
        eos = generator.integers(VOCAB, size=generator.integers(3)).tolist()
        sizes = (BLOCK, 1, 1, 1, 1, 1, 1 + cycles * stride, 8)
        memory = [generator.integers(VOCAB, size=size).astype(np.int32) for size in sizes]
        memory[1][0], memory[3][0], memory[6][0] = accepted, position + accepted + 1, generator.integers(cycles)
        memory[7][: 2 + len(eos)] = [position + accepted + int(generator.integers(3)), len(eos), *eos]
        found = [array.copy() for array in memory]
        more = committed(memory, stride, cycles)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in found]
        library.commit_loop(*pointers, ctypes.c_longlong(stride), ctypes.c_longlong(cycles), ctypes.c_ulonglong(1))
        assert asked.value == more
        assert all(np.array_equal(*pair) for pair in zip(memory, found, strict=True))
        answers.add(more)
    assert answers == {0, 1}
    library.begin_loop(found[6].ctypes.data_as(ctypes.c_void_p))
    assert found[6][0] == 0
