"""What is looked up, and that it never changes the text, the drafter's context, or where an answer ends."""

from __future__ import annotations

import random
import zlib
from types import SimpleNamespace

import fakes
import pytest
from fakes import VOCAB, FakeDrafter, FakeTarget
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loop import BLOCK, AnyWidth, drafters
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import AdaptiveWidth, CyclePlan
from dflash_compile.runtime.policy.prompt_lookup import LONGEST, PromptLookup
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Recorder
from dflash_compile.runtime.text import Text

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def searched(text: list[int], most: int) -> list[int]:
    """The same by searching the whole text: after the last earlier place of the longest run, up to three tokens, that
    it ends in.
    """
    for length in (3, 2, 1):
        for start in range(len(text) - length - 1, -1, -1):
            if length <= len(text) and text[start : start + length] == text[-length:]:
                going = list(text)
                for slot in range(most):
                    going.append(going[start + length + slot])
                return going[len(text) :]
    return []


@given(text=TEXTS, most=st.integers(1, 8), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_it_finds_what_a_search_finds(text, most, cuts):
    lookup, done = PromptLookup(most), 0
    for cut in [*sorted(cuts), len(text)]:
        lookup.extend(text[done:cut])
        done = max(done, cut)
        assert lookup.guess() == searched(text[:done], most)
        assert (lookup.match() > 0) == bool(lookup.guess())
        assert lookup.match() <= LONGEST


def test_the_length_of_a_match():
    lookup = PromptLookup(2)
    lookup.extend([1, 2, 3, 4, 5, 6, 9, 2, 3, 4])
    assert (lookup.match(), lookup.guess()) == (3, [5, 6])
    lookup.extend([5])
    assert (lookup.match(), lookup.guess()) == (4, [6, 9])
    lookup.extend([7])
    assert (lookup.match(), lookup.guess()) == (0, [])


def test_token_ids_of_any_size_are_kept_apart():
    lookup = PromptLookup(1)
    lookup.extend([2**31, 0, 7, 0, 2**31, 5, 2**31, 0])
    assert lookup.guess() == [7]


PERIOD = 7


def repeating(tokens, vocab=VOCAB):
    """A fake model that mostly says again what it said a period before, so that look-ups are often right and never
    always.
    """
    tokens = list(tokens)
    mixed = zlib.crc32(bytes(tokens[-3:]))
    return tokens[-PERIOD] if len(tokens) >= PERIOD and mixed % 8 else mixed % vocab


@pytest.fixture(autouse=True)
def _repeating(monkeypatch):
    monkeypatch.setattr(fakes, "choice", repeating)


def answer(
    prompt, *, context=64, min_verify_rows=2, widest=16, right=None, most=None, eos=(), controller=None, lookup=True
):
    """(tokens, statistics, target, drafter) of one request."""
    target = FakeTarget(context, min_verify_rows, widest)
    drafter = FakeDrafter(right, context, BLOCK, widest)
    record, request = Recorder(BLOCK), Request(prompt, most, draft=right is not None, lookup=lookup)
    controller = controller or AdaptiveWidth(BLOCK, narrowest=min_verify_rows, drafter=right is not None)
    return (
        list(run(Engines(target, drafter), request, plan_limits(request, target, eos), controller, record)),
        record.snapshot(),
        target,
        drafter,
    )


@settings(max_examples=300, deadline=None)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40),
    kind=st.none() | st.sampled_from(["right", "wrong", "random"]),
    seed=st.integers(0, 999),
    most=st.none() | st.integers(1, 40),
    eos=st.lists(st.integers(0, VOCAB - 1), max_size=2),
    context=st.integers(44, 90),
    min_verify_rows=st.integers(1, 4),
    widest=st.integers(8, 20),
    adaptive=st.booleans(),
)
def test_looking_up_equals_plain_decoding(prompt, kind, seed, most, eos, context, min_verify_rows, widest, adaptive):
    shape = {"context": context, "min_verify_rows": min_verify_rows, "widest": widest, "most": most, "eos": eos}
    plain, plain_stats, _, _ = answer(prompt, lookup=False, **shape)
    controller = None if adaptive else AnyWidth(seed, min_verify_rows, drafting=0.5 if kind else 0)
    tokens, stats, target, drafter = answer(
        prompt, right=drafters(kind, seed) if kind else None, controller=controller, **shape
    )

    assert tokens == plain == fakes.continuation(prompt, len(plain))
    assert stats.finish == plain_stats.finish
    assert stats.tokens == len(tokens)
    assert plain_stats.cycles == plain_stats.undrafted_tokens == len(plain) - 1, (
        "without look-ups a plain cycle gives one token"
    )
    assert min(target.widths) >= min_verify_rows
    assert 0 <= stats.looked_up_accepted <= stats.looked_up
    if drafter is not None:
        assert all(known == [*prompt, *tokens][: len(known)] for known in drafter.drafted_after), (
            "the drafter saw a guess that did not stand"
        )
    if kind is None:
        assert stats.drafted == 0
    # Every cycle gives its accepted guesses and one more; only the last may be cut.
    surplus = stats.accepted + stats.looked_up_accepted + stats.cycles - (stats.tokens - 1)
    assert 0 <= surplus < max(BLOCK, min_verify_rows)
    drafted = stats.tokens - 1 - stats.undrafted_tokens
    assert stats.tau * stats.drafted == pytest.approx(drafted)
    assert stats.undrafted_tau * (stats.cycles - stats.drafted) == pytest.approx(stats.undrafted_tokens)
    assert drafted <= stats.drafted + stats.accepted
    assert stats.undrafted_tokens <= stats.cycles - stats.drafted + stats.looked_up_accepted


class Plain:
    """Never drafts, and verifies as few rows as there can be."""

    def __init__(self):
        self.judged = []

    def prefilled(self, rows, seconds):
        pass

    def plan(self, most, match):
        return CyclePlan(1, drafted=False)

    def observe(self, plan, accepted, seconds, verify_seconds):
        pass

    def note_lookup(self, match, observed, accepted):
        self.judged.append((observed, accepted))


def test_a_guess_in_the_spare_row_saves_cycles_and_costs_no_row():
    prompt = [1, 2, 3, 4, 5, 6, 7] * 2
    plain, plain_stats, plain_target, _ = answer(prompt, lookup=False, most=30)
    tokens, stats, target, _ = answer(prompt, controller=Plain(), most=30)
    assert tokens == plain
    assert stats.cycles < 0.75 * plain_stats.cycles
    assert set(target.widths[1:]) == set(plain_target.widths[1:]) == {2}
    assert stats.seconds.keys() == {"prefill", "decode"}
    assert stats.undrafted_tau > 1.3


def test_where_one_row_is_exact_there_is_no_spare_row():
    _, stats, target, _ = answer([1, 2, 3] * 3, min_verify_rows=1, controller=Plain(), most=20)
    assert (stats.looked_up, stats.undrafted_tau, set(target.widths[1:])) == (0, 1, {1})


def test_look_ups_are_judged_whoever_guessed():
    for right in (None, lambda position: True):
        controller = Plain()
        _, stats, _, _ = answer([1, 2, 3, 4, 5, 6, 7] * 2, right=right, controller=controller, most=30)
        assert len(controller.judged) > stats.cycles / 2
        assert any(stood for _, stood in controller.judged)


def fake_session(eos=()):
    letters = "abcdefghijk"
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    manifest = SimpleNamespace(pairing=SimpleNamespace(block=BLOCK), text=SimpleNamespace(eos_ids=list(eos)))
    return Session(
        manifest, Engines(FakeTarget(), FakeDrafter(lambda position: position % 3)), Text(tokenizer, None, VOCAB)
    ), letters


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6] * 2


@settings(deadline=None)
@given(
    most=st.integers(1, 46), draft=st.booleans(), stop_at=st.none() | st.tuples(st.integers(0, 40), st.integers(1, 3))
)
def test_a_stop_in_the_middle_of_what_was_looked_up(most, draft, stop_at):
    session, letters = fake_session()
    whole = [letters[token] for token in fakes.continuation(PROMPT, most)]
    stop = "".join(whole[stop_at[0] : sum(stop_at)]) if stop_at else ""
    ids: list[int] = []
    text = "".join(
        session.generate(PROMPT, max_new_tokens=most, draft=draft, lookup=True, stop=stop or (), on_token=ids.append)
    )
    joined = "".join(whole)
    assert text == (joined[: joined.index(stop)] if stop else joined)
    assert len(ids) == session.statistics.tokens == (joined.index(stop) + len(stop) if stop else most)


def test_plain_decoding_stays_plain_unless_asked():
    session, _ = fake_session()
    plain = list(session.tokens(PROMPT, draft=False))
    assert session.statistics.looked_up == 0
    assert session.statistics.cycles == len(plain) - 1
    assert list(session.tokens(PROMPT, draft=False, lookup=True)) == plain
    assert session.statistics.looked_up_accepted > 0
    assert session.statistics.drafted == 0
    assert list(session.tokens(PROMPT)) == plain
    assert session.statistics.looked_up > 0
    assert list(session.tokens(PROMPT, lookup=False)) == plain
    assert session.statistics.looked_up == 0
    assert list(session.tokens(PROMPT, block=4)) == plain
    assert session.statistics.looked_up == 0
    with pytest.raises(UsageError, match="fixed block"):
        session.tokens(PROMPT, block=4, lookup=True)


def test_the_verdict_tells_look_ups_from_the_drafter():
    session, _ = fake_session()
    for _ in range(3):
        list(session.tokens(PROMPT))
    assert "what is looked up is right" in session.verdict


def cycle_costs(block, *, verify=0.13, draft=0.4):
    """Seconds of verifying by width, and of drafting besides, in plain steps of two rows."""
    return {width: 1 + verify * max(width - 2, 0) for width in range(1, block + 1)}, draft


def simulate(controller, tokens, *, draft_share, found, right, seed=0, block=8):
    """Seconds for `tokens` tokens of a text in which a match of 5 is found at a share `found` of places, each of its
    guesses right at a share `right`.

    Also those of always decoding plainly with the guess in the spare row, on the same coins.
    """
    verify, draft = cycle_costs(block)
    noise, time, plain, made = random.Random(seed), 0.0, 0.0, 0
    plans = []
    while made < tokens:
        match, stood = 5 * (noise.random() < found), 0
        while stood < block and noise.random() < right:
            stood += 1
        plan = controller.plan(block, match)
        accepted, rows = 0, max(plan.width, 2)
        if plan.drafted:
            while accepted < plan.width - 1 and noise.random() < draft_share:
                accepted += 1
        elif match:
            accepted = min(stood, rows - 1)
        seconds = verify[plan.width] + (draft if plan.drafted else 0)
        controller.observe(plan, accepted, seconds, verify[plan.width])
        if match:
            controller.note_lookup(match, accepted + 1, min(stood, accepted + 1))
        plans.append(plan)
        made, time = made + accepted + 1, time + seconds
    plain = tokens / (1 + found * right)
    return time, plain, plans


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("found", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("right", [0.0, 0.3, 0.6])
def test_a_drafter_that_is_never_right_costs_three_percent_of_plain_decoding_with_look_ups(seed, found, right):
    time, plain, plans = simulate(
        AdaptiveWidth(8, narrowest=2), 3000, draft_share=0.0, found=found, right=right, seed=seed
    )
    assert time <= 1.03 * plain * 1.02, "two percent for the coins"
    assert any(plan.drafted for plan in plans[100:]), "it keeps trying"


@pytest.mark.parametrize("seed", range(3))
def test_look_ups_that_are_never_right_cost_nothing(seed):
    time, _, plans = simulate(
        AdaptiveWidth(8, narrowest=2, drafter=False), 1000, draft_share=0.0, found=0.9, right=0.0, seed=seed
    )
    assert time <= 1.03 * 1000
    assert {plan.width for plan in plans[50:]} == {1}


def test_each_is_used_where_it_is_better():
    _, _, plans = simulate(AdaptiveWidth(8, narrowest=2), 4000, draft_share=0.6, found=0.5, right=0.9)
    later = plans[len(plans) // 2 :]
    drafted = [plan for plan in later if plan.drafted]
    wide = [plan for plan in later if not plan.drafted and plan.width > 2]
    assert 0.3 < len(drafted) / len(later) < 0.7
    assert len(wide) > 0.3 * len(later)


@pytest.mark.parametrize(
    ("draft_share", "found", "right"), [(0.3, 0.5, 0.3), (0.5, 0.3, 0.9), (0.7, 0.5, 0.6), (0.2, 0.9, 0.8)]
)
def test_it_comes_near_the_best_fixed_choice_for_each_place(draft_share, found, right):
    verify, draft = cycle_costs(8)

    def tokens(share, guesses):
        return sum(share**slot for slot in range(guesses + 1))

    drafted = [(tokens(draft_share, width - 1), verify[width] + draft) for width in range(2, 9)]
    unmatched = [(1.0, 1.0), *drafted]
    matched = [*((tokens(right, width - 1), verify[width]) for width in range(2, 9)), *drafted]
    best = max(
        (t0 * (1 - found) + t1 * found) / (c0 * (1 - found) + c1 * found) for t0, c0 in unmatched for t1, c1 in matched
    )
    time, _, _ = simulate(AdaptiveWidth(8, narrowest=2), 6000, draft_share=draft_share, found=found, right=right)
    assert 6000 / time >= 0.9 * best
