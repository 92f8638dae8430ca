"""The loop against plain decoding, for any drafter, length, end token and context."""

from __future__ import annotations

import random

import pytest
from fakes import VOCAB, FakeDrafter, FakeTarget, continuation
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_compile.runtime.acceptance import accept_greedy
from dflash_compile.runtime.cycles import chunk_rows
from dflash_compile.runtime.engines import DrafterEngine, Engines
from dflash_compile.runtime.errors import LengthError, UsageError
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import CyclePlan, FixedWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.statistics import Recorder

PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
BLOCK = 8


def drafters(kind: str, seed: int):
    noise = random.Random(seed)
    coin = [noise.random() < 0.6 for _ in range(256)]
    return {"right": lambda position: True, "wrong": lambda position: False, "random": lambda position: coin[position]}[
        kind
    ]


def answer(
    prompt, *, context=64, min_verify_rows=2, widest=16, right=None, most=None, eos=(), block=BLOCK, controller=None
):
    """(tokens, statistics, target, drafter) of one request; `right=None` decodes plainly."""
    target = FakeTarget(context, min_verify_rows, widest)
    drafter = FakeDrafter(right, context, BLOCK, widest)
    record, request = Recorder(BLOCK), Request(prompt, most, draft=right is not None, lookup=False)
    tokens = list(
        run(
            Engines(target, drafter),
            request,
            plan_limits(request, target, eos),
            controller or FixedWidth(block),
            record,
        )
    )
    return tokens, record.snapshot(), target, drafter


@settings(max_examples=300, deadline=None)
@given(
    prompt=PROMPTS,
    kind=st.sampled_from(["right", "wrong", "random"]),
    seed=st.integers(0, 99),
    most=st.none() | st.integers(1, 40),
    eos=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    context=st.integers(40, 72),
    min_verify_rows=st.integers(1, 4),
    widest=st.integers(8, 16),
    block=st.integers(2, BLOCK),
)
def test_drafting_equals_plain_decoding(prompt, kind, seed, most, eos, context, min_verify_rows, widest, block):
    shape = {"context": context, "min_verify_rows": min_verify_rows, "widest": widest, "most": most, "eos": eos}
    plain, plain_stats, _, _ = answer(prompt, **shape)
    tokens, stats, target, drafter = answer(prompt, right=drafters(kind, seed), block=block, **shape)

    assert tokens == plain == continuation(prompt, len(plain))
    assert stats.finish == plain_stats.finish
    assert all(token not in eos for token in tokens[:-1])
    assert (stats.finish == "eos") == (tokens[-1] in eos)
    if stats.finish == "max_new_tokens":
        assert len(tokens) == most
    if stats.finish == "length":
        assert len(prompt) + len(tokens) == max(context - min_verify_rows + 2, len(prompt) + 1)
    assert min(target.widths) >= min_verify_rows
    # What the drafter was shown is what was committed, row for row.
    assert all(known == [*prompt, *tokens][: len(known)] for known in drafter.drafted_after)


class AnyWidth:
    """Whatever the noise says: no controller may be able to change the text."""

    def __init__(self, seed, narrowest=2, drafting=0.7):
        self.noise, self.narrowest, self.drafting = random.Random(seed), narrowest, drafting
        self.heard = []

    def prefilled(self, rows, seconds):
        assert rows > 0
        assert seconds >= 0

    def plan(self, most, match):
        width = self.noise.choice([1, 1, *range(1, most + 1)])
        return CyclePlan(width, width > 1 and self.noise.random() < self.drafting)

    def choose_verify_rows(self, plan, confidence):
        assert plan.drafted
        assert [confidence(slot) for slot in range(plan.width - 1)] == [slot / 10 for slot in range(plan.width - 1)]
        self.rows = self.noise.randint(2, plan.width)
        return self.rows

    def observe(self, plan, accepted, seconds, verify_seconds):
        rows = self.rows if plan.drafted else plan.width + -plan.width % self.narrowest
        assert 0 <= accepted < rows
        assert seconds >= verify_seconds >= 0
        self.heard.append(plan)

    def note_lookup(self, match, observed, accepted):
        assert match > 0
        assert 0 <= accepted <= observed


@settings(max_examples=200, deadline=None)
@given(
    prompt=PROMPTS,
    kind=st.sampled_from(["right", "wrong", "random"]),
    seed=st.integers(0, 999),
    context=st.integers(44, 90),
    widest=st.integers(8, 20),
)
def test_any_choice_of_widths_gives_the_same_tokens(prompt, kind, seed, context, widest):
    plain, _, _, _ = answer(prompt, context=context, widest=widest)
    controller = AnyWidth(seed)
    tokens, stats, _, drafter = answer(
        prompt, right=drafters(kind, seed), context=context, widest=widest, controller=controller
    )
    assert tokens == plain
    assert len(controller.heard) == stats.cycles
    assert stats.drafted == sum(plan.drafted for plan in controller.heard)
    assert all(known == [*prompt, *tokens][: len(known)] for known in drafter.drafted_after), (
        "context written late is written whole"
    )


@settings(max_examples=150, deadline=None)
@given(
    prompt=PROMPTS,
    kind=st.sampled_from(["right", "wrong", "random"]),
    seed=st.integers(0, 99),
    most=st.integers(1, 40),
    block=st.integers(2, BLOCK),
)
def test_statistics_are_consistent(prompt, kind, seed, most, block):
    tokens, stats, _, _ = answer(prompt, context=128, right=drafters(kind, seed), most=most, block=block)
    assert stats.tokens == len(tokens) == most
    assert stats.prompt_tokens == len(prompt)
    assert stats.cycles >= stats.offered_at[0] >= stats.accepted_at[0]
    assert list(stats.offered_at) == sorted(stats.offered_at, reverse=True)
    assert list(stats.accepted_at) == sorted(stats.accepted_at, reverse=True)
    assert sum(1 for count in stats.offered_at if count) == (block - 1 if stats.cycles else 0)
    # Every cycle gives its accepted tokens and one more; only the last may be cut.
    surplus = stats.accepted + stats.cycles - (stats.tokens - 1)
    assert 0 <= surplus < block
    if stats.cycles:
        assert 1 <= stats.tau <= block or stats.cycles == 1
    if kind == "wrong":
        assert stats.accepted == 0
        assert stats.cycles == most - 1
    if kind == "right":
        assert stats.cycles == -(-(most - 1) // block)
    assert stats.host_seconds >= 0
    assert stats.seconds.keys() == {"prefill", "inject"} | ({"draft", "verify"} if stats.cycles else set())


def test_plain_decoding_counts_one_token_a_cycle():
    _, stats, target, _ = answer([1, 2, 3], most=10)
    assert stats.tau == 0, "nothing was drafted"
    assert stats.cycles == 9
    assert set(target.widths[1:]) == {2}, "decoding runs at the narrowest exact width"
    assert stats.seconds.keys() == {"prefill", "decode"}
    assert stats.offered_at == (0,) * (BLOCK - 1)


def test_consumer_time_is_not_counted():
    import time

    engines, record = Engines(FakeTarget(), FakeDrafter(lambda position: True)), Recorder(BLOCK)
    request = Request([1, 2], 4, draft=False)
    for _ in run(engines, request, plan_limits(request, engines.target, ()), FixedWidth(BLOCK), record):
        time.sleep(0.05)
    assert record.snapshot().prefill_seconds + record.snapshot().decode_seconds < 0.1


def test_last_blocks_taps_are_not_injected():
    _, stats, _, drafter = answer([1, 2, 3, 4], right=lambda position: True, most=9)
    assert stats.cycles == 1
    assert drafter.cache[4] == 99


@given(rows=st.integers(1, 400), widest=st.integers(4, 64), narrowest=st.integers(1, 4))
def test_prompt_chunks(rows, widest, narrowest):
    sizes = chunk_rows(rows, widest, narrowest)
    assert sum(sizes) == rows
    assert len(sizes) == -(-rows // widest)
    assert all(1 <= size <= widest for size in sizes)
    if rows >= narrowest and widest >= 2 * narrowest:
        assert min(sizes) >= narrowest


@given(
    st.lists(st.integers(0, 2), max_size=8).flatmap(
        lambda p: st.tuples(st.just(p), st.lists(st.integers(0, 2), min_size=len(p) + 1, max_size=len(p) + 1))
    )
)
def test_acceptance_is_the_common_prefix(case):
    proposals, choices = case
    outcome = accept_greedy(proposals, choices)
    assert proposals[: outcome.accepted] == choices[: outcome.accepted]
    assert outcome.accepted == len(proposals) or proposals[outcome.accepted] != choices[outcome.accepted]
    assert outcome.bonus == choices[outcome.accepted]


def test_prompt_that_does_not_fit():
    target = FakeTarget(context=16)
    assert len(answer([1] * 16, context=16)[0]) == 1
    with pytest.raises(LengthError, match="17 tokens"):
        plan_limits(Request([1] * 17), target, ())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt_ids": []}, "empty"),
        *(({"max_new_tokens": most}, "max_new_tokens") for most in (0, -1, 1.5, "9")),
        *(({"block": rows}, "block=") for rows in (1, 0, -2, 2.0, "4")),
        ({"block": 4, "lookup": True}, "lookup=True"),
    ],
)
def test_a_request_that_nothing_can_answer(asked, says):
    with pytest.raises(UsageError, match=says) as caught:
        Request(**{"prompt_ids": [1], **asked})
    assert caught.value.fix


def test_who_guesses_where_it_is_left_open():
    assert Request([1]).looks_up(device_cycles=False)
    assert not Request([1]).looks_up(device_cycles=True), "a look-up between the device's cycles makes it wait"
    assert Request([1], lookup=True).looks_up(device_cycles=True)
    assert not Request([1], draft=False).looks_up(device_cycles=False)
    assert not Request([1], block=4).looks_up(device_cycles=False)


def test_engines_refuse_what_does_not_fit():
    target = FakeTarget(context=16)
    with pytest.raises(LengthError):
        target.verify([1, 2, 3], 14)
    with pytest.raises(LengthError, match="15 to 17"):
        target.verify([1], 15)
    with pytest.raises(UsageError):
        target.verify([], 0)
    target.prefill([1], 0)
    drafter = FakeDrafter(lambda position: True)
    with pytest.raises(UsageError, match="taps hold 1"):
        drafter.inject(target.taps, 2, 0)
    with pytest.raises(UsageError):
        drafter.draft(1, 0, 9)


def test_only_a_drafter_that_reports_confidence_tells_that_of_what_it_drafted():
    drafter = FakeDrafter(lambda position: True)
    drafter.draft(1, 0, 4)
    assert [drafter.confidence(slot) for slot in range(3)] == [0.0, 0.1, 0.2]
    for slot in (-1, 3):
        with pytest.raises(UsageError, match="slot"):
            drafter.confidence(slot)
    with pytest.raises(UsageError, match="how sure"):
        DrafterEngine._confidence_impl(drafter, 0)
