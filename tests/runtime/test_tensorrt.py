"""The TensorRT runtime on a GPU in plain Python: order, memory and addresses, and that the text is the target's own
whatever the drafter guesses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trt_machine
from fakes import continuation
from trt_fakes import ARCH, BLOCK, CHUNK, CONTEXT, ROWS, manifest
from trt_machine import PATTERNS, PROMPT, Machine, Turns

from dflash_compile.runtime.backends.tensorrt.backend import check_architecture, kernels_entry
from dflash_compile.runtime.backends.tensorrt.device import CudaDevice
from dflash_compile.runtime.bundle.manifest import RequirementRecord
from dflash_compile.runtime.errors import BundleError, IncompatibleError, LengthError, UsageError
from dflash_compile.runtime.policy.controller import PLAIN, AdaptiveWidth
from dflash_compile.runtime.requirements import check_requirements

DRAFT, VERIFY, PREFILL = (["embed", role, "head"] for role in ("draft", "verify", "prefill"))
ORDER = [*DRAFT, *VERIFY, "inject", "commit", "read"]


@pytest.mark.parametrize("capturable", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_text_is_the_target_s_whatever_is_guessed(pattern: str, capturable: bool) -> None:
    machine = Machine(PATTERNS[pattern], capturable)
    expected = continuation(PROMPT, 40)
    assert machine.answer(PROMPT, 40) == expected
    assert machine.answer(PROMPT, 40, draft=False) == expected
    assert machine.answer(PROMPT, 40, width=3) == expected, "narrower cycles go the plain way"
    assert machine.answer([9, *PROMPT], 10) == continuation([9, *PROMPT], 10), "nothing of the last request is left"


def test_a_cycle_is_one_graph_in_order_and_one_copy_back() -> None:
    machine = Machine()
    assert machine.device.graphs == [ORDER, ORDER], "two sides of the same"
    machine.answer(PROMPT, 20)
    log = machine.device.log
    first = log.index("launch")
    assert (
        log[:first]
        == ["write"] * 3
        + [*PREFILL, "read", "write", "inject"]
        + ["write"] * 3
        + [*PREFILL, "read", "write", "inject"]
        + ["write"] * 2
    )
    assert log[first:] == ["launch", *ORDER] * log.count("launch"), "from then on the host writes nothing"
    assert machine.record.snapshot().cycles <= log.count("launch") <= machine.record.snapshot().cycles + 1


def test_the_next_cycle_runs_while_the_host_reads() -> None:
    machine = Machine(PATTERNS["now and then"])
    cycle = machine.engines.cycle
    assert cycle is not None
    choice = machine.answer(PROMPT, 1)[0]
    tokens = list(cycle.run(choice, len(PROMPT), BLOCK).tokens)
    assert machine.device.queue, "the next cycle is on the stream"
    launches = machine.device.log.count("launch") + 1
    following = list(cycle.run(tokens[-1], len(PROMPT) + len(tokens), BLOCK).tokens)
    assert machine.device.log.count("launch") == launches, "and is the one that was launched already"
    assert [choice, *tokens, *following] == continuation(PROMPT, 1 + len(tokens) + len(following))


def test_a_cycle_that_nobody_continues_is_thrown_away() -> None:
    machine = Machine(PATTERNS["now and then"])
    cycle = machine.engines.cycle
    assert cycle is not None
    choice = machine.answer(PROMPT, 1)[0]
    first = cycle.run(choice, len(PROMPT), BLOCK)
    assert cycle.run(choice, len(PROMPT), BLOCK) == first, "the same question again"


@pytest.mark.parametrize("cycles", [0, 4])
def test_a_new_answer_continues_nothing(cycles: int) -> None:
    """What the device did ahead for an answer that was left may start from the next one's anchor, at its position, and
    be of another text.
    """
    machine = Machine(PATTERNS["never right"], cycles=cycles)
    left = machine.started(PROMPT, 40)
    first = [*PROMPT, next(left), next(left)]
    left.close()
    *others, anchor = first
    other = next(
        prompt
        for n in range(1, 1000)
        if continuation(prompt := [n % 10, n // 10 % 10, n // 100, *others[3:]], 1) == [anchor]
    )
    assert machine.answer(other, 10) == continuation(other, 10)


def test_nothing_is_launched_beyond_the_cache() -> None:
    machine = Machine()
    room = CONTEXT - len(PROMPT) - BLOCK + 2
    assert machine.answer(PROMPT, 1000) == continuation(PROMPT, room)
    cycle = machine.engines.cycle
    assert cycle is not None
    with pytest.raises(LengthError):
        cycle.run(1, CONTEXT - BLOCK + 1, BLOCK)
    assert ROWS >= CONTEXT


def test_every_buffer_is_allocated_once_and_shared_as_it_must_be() -> None:
    machine = Machine()
    before = dict(machine.device.memory)
    machine.answer(PROMPT, 30)
    assert machine.device.memory.keys() == before.keys(), "nothing is allocated while it runs"
    chains = machine.pair.chains
    (fill, prefill, first), (embed, verify, head), (row, draft, propose), (inject,), (long,) = (
        [step.addresses for step in chains[call].steps]
        for call in (("prefill", CHUNK), ("verify", BLOCK), ("draft", BLOCK), ("inject", BLOCK), ("inject", CHUNK))
    )
    for cache in ("k_cache_0", "v_cache_0"):
        assert prefill[cache] == verify[cache] == verify[f"{cache}_out"]
        assert draft[cache] == inject[cache] == long[cache] != verify[cache]
    assert propose["proposals"] == embed["tokens"] == head["block"]
    assert row["tokens"] == propose["anchor"], "the anchor's row is looked up where the masks' rows are"
    assert row["embedded"] == draft["embedded"] != embed["embedded"] == verify["embedded"] == fill["embedded"]
    assert head["hidden"] == verify["hidden"] != first["hidden"] == prefill["last"]
    assert verify["taps"] == prefill["taps"] == inject["taps"]
    places = {*verify.values(), *head.values(), *propose.values(), *first.values(), *embed.values()}
    unread = {propose[port] for port in ("block", "tokens", "accepted", "bonus", "next_position")} | {head["proposals"]}
    assert len(unread) == 6
    assert embed["table"] == head["table"] == propose["table"]
    assert machine.device.loaded == ["table.bin"], "once for all that read it"
    assert len(places) == 22, "whatever is not shared has a place of its own"
    assert len({plan.given for plan in machine.pair.plans.values()}) == 1, "one scratch memory for all"  # type: ignore[attr-defined]


def test_a_drafter_with_a_head_of_its_own_uses_none_of_the_target_s() -> None:
    machine = Machine(PATTERNS["now and then"], own_head=True)
    assert machine.device.graphs == [["draft", *VERIFY, "inject", "commit", "read"]] * 2
    assert machine.answer(PROMPT, 40) == continuation(PROMPT, 40)


@pytest.mark.parametrize("capturable", [True, False])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("turns", [(2, BLOCK), (BLOCK, BLOCK, 2, 2, 2), (BLOCK, PLAIN, 2), (3, 2, BLOCK)])
def test_widths_may_take_turns(turns: tuple[int, ...], pattern: str, capturable: bool) -> None:
    machine = Machine(PATTERNS[pattern], capturable, widths=(2, BLOCK))
    assert machine.engines.widths == (2, BLOCK)
    controller = Turns(*turns)
    expected = continuation(PROMPT, CONTEXT)
    found = machine.answer(PROMPT, 60, controller=controller)
    assert found == expected[:60]
    assert len(set(controller.ran)) > 1
    answer = machine.answer(PROMPT, 1000, controller=controller)
    assert answer == expected[: CONTEXT - len(PROMPT)], "to the last row, which the narrowest verify leaves room for"
    assert machine.answer(PROMPT, 30, draft=False) == expected[:30]
    assert machine.answer(PROMPT, 30, controller=AdaptiveWidth(BLOCK, machine.engines.widths)) == expected[:30]


def test_a_change_of_width_wastes_no_cycle() -> None:
    machine = Machine(PATTERNS["now and then"], widths=(2, BLOCK))
    assert machine.device.graphs == [ORDER] * 4, "two sides of each width"
    controller = Turns(BLOCK, 2, 2, BLOCK)
    machine.answer(PROMPT, 24, controller=controller)
    assert controller.ran[:8] == [BLOCK, BLOCK, 2, 2, BLOCK, BLOCK, 2, 2], "one cycle late"
    assert len(controller.ran) <= machine.device.log.count("launch") <= len(controller.ran) + 1


def test_a_width_that_rounds_otherwise_is_left_aside() -> None:
    machine = Machine(widths=(2, 3, BLOCK), unlike=3)
    assert (machine.engines.widths, machine.pair.widths) == ((2, BLOCK), [2, 3, BLOCK])
    assert "a verify of 3 rows rounds otherwise" in machine.engines.notes[0]
    assert machine.answer(PROMPT, 40, width=3) == continuation(PROMPT, 40)
    assert Machine(widths=(2, BLOCK), unlike=2).engines.target.min_verify_rows == BLOCK, (
        "then plain decoding is as wide as a block"
    )
    with pytest.raises(UsageError, match="3 rows"):
        machine.engines.cycle.run(1, 0, 3)  # type: ignore[union-attr]


def test_engines_that_cannot_be_captured_capture_themselves() -> None:
    machine = Machine(capturable=False)
    assert machine.device.graphs == []
    assert sorted(machine.whole_graph) == ["draft", "embed", "embed", "head", "inject", "verify"], "each program once"


def test_closing_waits_for_the_cycle_under_way() -> None:
    machine = Machine()
    machine.answer(PROMPT, 6)
    assert machine.device.queue
    machine.engines.close()
    assert machine.device.queue == []
    assert machine.device.closed
    with pytest.raises(UsageError, match="closed"):
        machine.engines.target.verify([1, 2], 0)


def test_weights_of_another_size_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trt_machine, "bundle_file", lambda name: SimpleNamespace(name=name, stat=lambda: Path().stat()))
    with pytest.raises(BundleError, match=r"table\.bin has another size"):
        Machine()


def test_a_missing_engine_is_named() -> None:
    with pytest.raises(BundleError, match="no draft engine of 4 rows"):
        Machine(drop="draft")


def test_a_gpu_that_the_bundle_was_not_built_for_is_told_how_to_mend_it() -> None:
    bundle = SimpleNamespace(manifest=manifest(), root="somewhere")
    check_architecture(bundle, ARCH, "RTX 4090")  # type: ignore[arg-type]
    with pytest.raises(IncompatibleError, match="RTX 5090") as failure:
        check_architecture(bundle, "sm120", "RTX 5090")  # type: ignore[arg-type]
    assert "--arch sm89,sm120" in failure.value.fix


def test_compiled_kernels_are_kept_apart_by_bundle_library_and_gpu() -> None:
    def file(content: str, version: str, name: str) -> str:
        requires = SimpleNamespace(package="tensorrt-rtx", built_with=version)
        bundle = SimpleNamespace(manifest=SimpleNamespace(requires=requires, files={"a": content}))
        return str(kernels_entry(bundle, ARCH, name))  # type: ignore[arg-type]

    files = {
        file("x", "1.7", "RTX 4090"),
        file("y", "1.7", "RTX 4090"),
        file("x", "1.8", "RTX 4090"),
        file("x", "1.7", "../RTX"),
    }
    assert len(files) == 4
    assert all(not path.startswith("/") and ".." not in path for path in files)


def test_a_machine_without_a_gpu_is_told_what_it_lacks() -> None:
    failure = _failure(CudaDevice)
    if failure is None:
        pytest.skip("this machine has an NVIDIA GPU: tests/device is for it")
    assert "driver" in failure.fix or "pip install" in failure.fix


def _failure(call: Callable[[], object]) -> IncompatibleError | None:
    try:
        call()
    except IncompatibleError as failure:
        return failure
    return None


def test_a_later_version_than_the_engines_run_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_compile.runtime.backend import Installed
    from dflash_compile.runtime.backends.tensorrt import backend as tensorrt

    requires = RequirementRecord(
        backend="tensorrt",
        package="tensorrt-rtx",
        minimum="1.7.1.116",
        maximum="1.7.1.116",
        built_with="1.7.1.116",
        exact_width=4,
    )
    for version, word in (("1.7.1.116", None), ("1.8.0.1", "tensorrt-rtx==1.7.1.116"), ("1.6.0.1", "upgrade")):
        monkeypatch.setattr(tensorrt, "installed", lambda version=version: Installed({"tensorrt-rtx": version}))
        if word is None:
            assert check_requirements(requires) == ()
            continue
        with pytest.raises(IncompatibleError) as failure:
            check_requirements(requires)
        assert word in failure.value.fix
