"""The controller with a drafter that says how sure it is: worth more where that is true, and harmless where it is
not.
"""

from __future__ import annotations

import random
import re
from statistics import mean

import pytest
from prices import BLOCK, DRAFT, NARROWEST, VERIFY, WIDTHS, Crowded

from dflash_compile.runtime.policy.controller import PLAIN, AdaptiveWidth, CyclePlan

SEEDS = range(5)


def even(noise):
    """Every place is as easy as the next."""
    return 0.5


def split(noise):
    """Half of the places are all but certain, the other half hard."""
    return noise.choice([0.97, 0.15])


def mixed(noise):
    return noise.random()


def never(noise):
    return 0.0


def truth(share, noise):
    return share


def boast(share, noise):
    return 0.99


def shy(share, noise):
    return 0.01


def babble(share, noise):
    return noise.random()


def inverted(share, noise):
    return 1 - share


def adaptive():
    return AdaptiveWidth(BLOCK, WIDTHS, narrowest=NARROWEST)


def speed(controller, text, says, tokens, seed, clock=lambda work: work):
    """Tokens for a plain step of work.

    At each place of `text` all proposals stand with one chance, of which the drafter `says` something, or nothing.
    """
    noise, made, work = random.Random(seed), 0, 0.0
    controller.begin()
    while made < tokens:
        share = text(noise)
        plan = controller.plan(BLOCK, 0)
        rows = plan.width
        if plan.drafted and says is not None:
            told = [says(share, noise) for _ in range(plan.width - 1)]
            rows = controller.choose_verify_rows(plan, told.__getitem__)
            assert rows in WIDTHS
            assert rows <= plan.width
        accepted = 0
        while plan.drafted and accepted < rows - 1 and noise.random() < share:
            accepted += 1
        verify, draft = VERIFY[rows], DRAFT[plan.width] if plan.drafted else 0.0
        verified = clock(verify)
        controller.observe(plan, accepted, verified + clock(draft), verified)
        made, work = made + accepted + 1, work + verify + draft
    return made / work


def average(text, says, tokens=800):
    return mean(speed(adaptive(), text, says, tokens, seed) for seed in SEEDS)


@pytest.mark.parametrize("text", [split, mixed])
def test_a_drafter_that_knows_where_it_is_right_is_worth_more(text):
    assert average(text, truth) > 1.08 * average(text, None)


@pytest.mark.parametrize("text", [even, never, split, mixed])
def test_the_truth_never_costs(text):
    assert average(text, truth) >= 0.99 * average(text, None)
    assert average(text, truth, 96) >= 0.99 * average(text, None, 96)


@pytest.mark.parametrize("says", [boast, shy, babble, inverted])
@pytest.mark.parametrize("text", [even, never, mixed])
def test_one_that_does_not_know_is_found_out(text, says):
    assert average(text, says) >= 0.97 * average(text, None)


@pytest.mark.parametrize("says", [None, truth, boast, shy, babble, inverted])
def test_one_that_is_never_right_costs_three_percent_at_most(says):
    for seed in SEEDS:
        assert speed(adaptive(), never, says, 400, seed) >= 0.97


@pytest.mark.parametrize("says", [boast, babble, inverted])
def test_its_lies_are_paid_for_once(says):
    """Later answers of a session know it."""
    for seed in SEEDS:
        controller = adaptive()
        assert speed(controller, never, says, 96, seed) >= 0.95
        assert speed(controller, never, says, 96, seed + 100) >= 0.97


@pytest.mark.parametrize("most", [0.0, 0.1])
def test_a_session_that_begins_with_a_dull_answer_loses_three_percent_at_most(most):
    for seed in range(40):
        assert speed(adaptive(), lambda noise: most * noise.random(), truth, 96, seed) >= 0.97


def test_it_says_nothing_before_it_knows_what_a_cycle_is_worth():
    controller = adaptive()
    plan = controller.plan(BLOCK, 0)

    def chance(slot):
        raise AssertionError("asked before anything could be made of it")

    assert controller.choose_verify_rows(plan, chance) == plan.width


def test_a_narrowed_block_tells_what_its_rows_cost_and_what_its_draft_did():
    controller = adaptive()
    controller.observe(controller.plan(BLOCK, 0), 0, 1.0 + 0.2, 1.0)
    controller.plan(BLOCK, 0)
    plan = CyclePlan(6, drafted=True)
    assert controller.choose_verify_rows(plan, lambda slot: 0.01) == 2
    controller.observe(plan, 0, 1.0 + 0.25, 1.0)
    assert controller.cost(PLAIN) == 1.0
    assert controller.cost(6) == pytest.approx(1.0 + 0.25), "two rows of a draft of six"
    assert controller.cost(2) == pytest.approx(1.0 + 0.2)


@pytest.mark.parametrize("says", [truth, boast])
@pytest.mark.parametrize(("taken", "own"), [(0.5, 0.4), (0.67, 0.4)])
@pytest.mark.parametrize("share", [0.0, 0.13, 0.3, 0.6])
def test_a_job_that_takes_half_of_the_core_changes_little(says, taken, own, share):
    def text(noise):
        return share

    crowded = mean(speed(adaptive(), text, says, 800, seed, Crowded(taken, own, seed + 1)) for seed in SEEDS)
    assert crowded >= 0.96, "it may not lose"
    assert crowded >= 0.93 * average(text, says)


@pytest.mark.parametrize("says", [None, truth, boast])
def test_it_turns_on_again_when_dull_text_becomes_easy(says):
    def easy(noise):
        return 0.8

    for seed in SEEDS:
        controller = adaptive()
        speed(controller, never, says, 400, seed)
        assert speed(controller, easy, says, 400, seed) >= 0.85 * average(easy, says, 400)


@pytest.mark.parametrize("most", [0.0, 0.1])
def test_easy_answers_do_not_make_a_dull_one_dear(most):
    first = []
    for seed in SEEDS:
        controller = adaptive()
        speed(controller, mixed, truth, 3000, seed)
        first.append(speed(controller, lambda noise: most * noise.random(), truth, 96, seed))
    assert mean(first) >= 0.97


def test_the_verdict_says_how_much_of_a_block_is_verified():
    controller = adaptive()
    speed(controller, split, truth, 400, 0)
    drafted, verified = re.match(r"drafting (\d) rows and verifying (\d\.\d) of them", controller.verdict()).groups()
    assert 2 < float(verified) < int(drafted)
