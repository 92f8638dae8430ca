"""The controller on simulated machines and drafters, where the best choice is known."""

from __future__ import annotations

import random
from itertools import product

import pytest

from dflash_compile.runtime.policy.acceptance_rates import AcceptanceRates
from dflash_compile.runtime.policy.controller import PLAIN, AdaptiveWidth, CyclePlan, FixedWidth
from dflash_compile.runtime.policy.costs import Costs

BLOCK = 8
TWO_CORES = {width: 1.0 + 0.13 * (width - 1) + (0.4 if width > 1 else 0.0) for width in range(1, 17)}
"""a cycle's cost by width, in plain steps: a block is dear"""
MANY_CORES = {width: 1.0 + 0.01 * (width - 1) + (0.15 if width > 1 else 0.0) for width in range(1, 17)}


def rate(cost: dict[int, float], shares: list[float], width: int) -> float:
    """Tokens per plain step when always decoding at `width`."""
    expected = stands = 1.0
    for share in shares[: width - 1]:
        stands *= share
        expected += stands
    return expected / cost[width]


def simulate(controller, cost, shares, tokens, seed=0, jitter=0.0) -> tuple[float, list[int]]:
    """Time in plain steps for `tokens` tokens, and the widths chosen.

    `shares` may be a function of the tokens made so far.
    """
    noise = random.Random(seed)
    made, time, widths = 0, 0.0, []
    while made < tokens:
        plan = controller.plan(len(cost), 0)
        width = plan.width
        now = shares(made) if callable(shares) else shares
        accepted = 0
        while accepted < width - 1 and noise.random() < now[accepted]:
            accepted += 1
        seconds = cost[width] * (1 + jitter * noise.random())
        controller.observe(plan, accepted, seconds, seconds - 0.4 if plan.drafted else seconds)
        widths.append(width)
        made, time = made + accepted + 1, time + seconds
    return time, widths


@pytest.mark.parametrize("cost", [TWO_CORES, MANY_CORES], ids=["two cores", "many cores"])
@pytest.mark.parametrize("block", [4, 8, 16])
@pytest.mark.parametrize("seed", range(3))
def test_a_drafter_that_is_never_right_costs_three_percent_at_most(cost, block, seed):
    time, widths = simulate(AdaptiveWidth(block), cost, [0.0] * 15, 400, seed)
    assert time <= 1.03 * 400
    assert any(width > PLAIN for width in widths[50:]), "it keeps trying"


@pytest.mark.parametrize("cost", [TWO_CORES, MANY_CORES], ids=["two cores", "many cores"])
@pytest.mark.parametrize("first", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("decay", [1.0, 0.85])
@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_it_finds_the_best_width(cost, first, decay, jitter):
    shares = [first * decay**slot for slot in range(BLOCK - 1)]
    best = max(rate(cost, shares, width) for width in range(1, BLOCK + 1))
    time, _ = simulate(AdaptiveWidth(BLOCK), cost, shares, 3000, jitter=jitter)
    assert 3000 / time * (1 + jitter / 2) >= 0.93 * best


DEAR_ROWS = {width: 1.0 + 0.25 * max(width - 2, 0) + (0.4 if width > 1 else 0.0) for width in range(1, 17)}
"""a second row is free, as where plain decoding computes two, and every further one costs what one of a prompt does"""


def test_a_prompt_tells_what_rows_cost_before_any_wide_block_was_tried():
    """Where every other proposal stands a block of two is best, and an answer of 16 tokens has no time to find out by
    trying others.
    """
    time = {False: 0.0, True: 0.0}
    for told, seed in product((False, True), range(300)):
        controller = AdaptiveWidth(BLOCK, narrowest=2)
        if told:
            controller.prefilled(64, 64 * 0.25)
        time[told] += simulate(controller, DEAR_ROWS, [0.5] * 7, 16, seed)[0]
    assert time[True] < 0.99 * time[False]


@pytest.mark.parametrize("row", [0.001, 50.0], ids=["rows all but free", "a first prompt that sets things up"])
@pytest.mark.parametrize("cost", [TWO_CORES, MANY_CORES], ids=["two cores", "many cores"])
def test_no_prompt_keeps_it_from_the_best_width(cost, row):
    shares = [0.85] * (BLOCK - 1)
    controller = AdaptiveWidth(BLOCK)
    controller.prefilled(64, 64 * row)
    best = max(rate(cost, shares, width) for width in range(1, BLOCK + 1))
    assert 3000 / simulate(controller, cost, shares, 3000)[0] >= 0.93 * best


def test_a_short_prompt_and_a_slower_one_tell_nothing():
    controller, untold = AdaptiveWidth(BLOCK), AdaptiveWidth(BLOCK)
    controller.prefilled(BLOCK, 1e6)
    assert simulate(controller, TWO_CORES, [0.6] * 7, 200) == simulate(untold, TWO_CORES, [0.6] * 7, 200)
    told, again = AdaptiveWidth(BLOCK), AdaptiveWidth(BLOCK)
    for one in (told, again):
        one.prefilled(64, 64 * 0.13)
    again.prefilled(64, 64 * 0.26)
    assert simulate(told, TWO_CORES, [0.6] * 7, 200) == simulate(again, TWO_CORES, [0.6] * 7, 200)


def test_it_turns_off_and_on_again_with_the_text():
    def shares(made):
        return [0.9] * 7 if 600 <= made < 1200 else [0.02] * 7

    made, drafted = 0, {"dull": [0, 0], "easy": [0, 0]}
    controller = AdaptiveWidth(BLOCK)
    noise = random.Random(0)
    while made < 1800:
        phase = "easy" if 700 <= made < 1200 else "dull"
        plan = controller.plan(BLOCK, 0)
        width = plan.width
        accepted = 0
        while accepted < width - 1 and noise.random() < shares(made)[accepted]:
            accepted += 1
        controller.observe(plan, accepted, TWO_CORES[width], TWO_CORES[width])
        made += accepted + 1
        drafted[phase][0] += width > PLAIN
        drafted[phase][1] += 1
    assert drafted["easy"][0] / drafted["easy"][1] > 0.8
    assert drafted["dull"][0] / drafted["dull"][1] < 0.2


def test_no_room_means_no_block():
    controller = AdaptiveWidth(BLOCK)
    assert controller.plan(1, 0) == controller.plan(0, 9) == CyclePlan(PLAIN, drafted=False)
    assert 2 <= controller.plan(3, 0).width <= 3
    assert [FixedWidth(6).plan(most, 9)[:2] for most in (0, 1, 2, 6, 9)] == [
        (1, False),
        (1, False),
        (2, True),
        (6, True),
        (6, True),
    ]


def test_an_interrupted_cycle_does_not_change_its_mind():
    controller = AdaptiveWidth(BLOCK)
    simulate(controller, MANY_CORES, [0.8] * 7, 500)
    chosen = controller.plan(BLOCK, 0)
    controller.observe(chosen, 3, 60.0, 59.0)
    assert controller.plan(BLOCK, 0).width > PLAIN


def test_the_verdict_says_what_it_does():
    controller = AdaptiveWidth(BLOCK)
    assert "too few" in controller.verdict()
    simulate(controller, TWO_CORES, [0.0] * 7, 300)
    assert controller.verdict().startswith("decoding plainly")
    simulate(controller, TWO_CORES, [0.95] * 7, 2000)
    assert controller.verdict().startswith("drafting ")


def test_costs_of_widths_that_never_ran_lie_between_those_that_did():
    costs = Costs()
    with pytest.raises(ValueError, match="empty"):
        costs.of(2)
    for width, seconds in ((2, 1.0), (6, 3.0), (6, 90.0), (6, 3.0)):
        costs.note(width, seconds)
    assert [costs.of(width) for width in (1, 2, 4, 6, 9)] == [1.0, 1.0, 2.0, 3.0, 3.0]
    costs.note(4, 1.5)
    assert [costs.of(width) for width in (3, 4, 5)] == [1.25, 1.5, 2.25]
    assert (3 in costs, 4 in costs, len(costs)) == (False, True, 3)


def test_a_width_of_few_calls_is_forgotten_and_measured_again():
    costs = Costs({1: 0.0})
    for width, seconds in ((6, 90.0), (2, 1.0)):
        costs.note(width, seconds)
    assert costs.of(4) == 45.5
    for _ in range(101):
        costs.note(2, 1.0)
    assert (6 in costs, costs.of(6), 1 in costs) == (False, 1.0, True)
    for _ in range(3):
        costs.note(6, 3.0)
    for _ in range(300):
        costs.note(2, 1.0)
    assert costs.of(6) == 3.0


def test_one_slow_call_does_not_bar_a_width_for_good():
    controller = AdaptiveWidth(BLOCK)
    controller.observe(CyclePlan(BLOCK, drafted=True), 3, 60.0, 59.0)
    assert MANY_CORES[BLOCK] < 2
    _, widths = simulate(controller, MANY_CORES, [0.9] * 7, 2000)
    assert sum(widths[-200:]) / 200 > BLOCK - 2


def test_rates_are_of_guesses_whose_predecessors_were_accepted():
    rates = AcceptanceRates(3, prior=0.5)
    assert (list(rates.by_slot()), bool(rates)) == ([0.5] * 3, False)
    assert list(rates.tokens()) == [1.0, 1.5, 1.75, 1.875]
    for _ in range(400):
        rates.note(observed=2, accepted=2)  # the third guess never met the truth
    assert list(rates.by_slot()) == pytest.approx([1.0, 1.0, 0.5], abs=0.02)
    assert list(rates.tokens()) == pytest.approx([1, 2, 3, 3.5], abs=0.05)
    for _ in range(400):
        rates.note(observed=3, accepted=0)
    assert list(rates.by_slot()) == pytest.approx([0.0, 0.5, 0.5], abs=0.03)


def test_it_chooses_of_the_widths_there_are():
    controller = AdaptiveWidth(16, (4, 8, 16))
    chosen = set()
    for most in [16] * 40 + [9, 7]:
        plan = controller.plan(most, 0)
        controller.observe(plan, min(plan.width - 1, 6), 1 + plan.width / 10, 1 + plan.width / 10)
        chosen.add(plan.width)
    assert chosen <= {PLAIN, 4, 8, 16}
    assert controller.plan(16, 0).width == 8, "seven tokens a cycle, and 16 rows cost more"
    assert controller.plan(7, 0).width == 4
    assert controller.plan(3, 0).width == PLAIN, "no width fits"
    assert "drafting 8 rows" in controller.verdict()
