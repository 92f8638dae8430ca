"""Which rows of a drafted block are verified, and what is remembered of blocks."""

from __future__ import annotations

import random

import pytest

from dflash_compile.runtime.policy.verify_rows import Blocks

WIDTHS = (2, 4, 6)
CHEAP, DEAR = (1.0, 1.1, 1.2), (1.0, 2.5, 4.0)


def asked(blocks, drafted, chances, costs_in_tokens):
    """The rows chosen, and the slots that were asked for."""
    slots = []

    def chance(slot):
        slots.append(slot)
        return chances[slot]

    return blocks.choose_verify_rows(drafted, chance, costs_in_tokens), slots


def tokens(chances, rows):
    total = stands = 1.0
    for chance in chances[: rows - 1]:
        stands *= chance
        total += stands
    return total


@pytest.mark.parametrize("drafted", WIDTHS)
@pytest.mark.parametrize("costs_in_tokens", [CHEAP, DEAR, (1.0, 1.54, 2.02)])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_those_that_earn_most(drafted, costs_in_tokens, seed):
    """As if every choice had been tried."""
    noise = random.Random(seed)
    chances = [noise.random() ** 0.3 for _ in range(5)]
    best = max(
        (tokens(chances, width) - cost, -width)
        for width, cost in zip(WIDTHS, costs_in_tokens, strict=True)
        if width <= drafted
    )
    assert asked(Blocks(WIDTHS), drafted, chances, costs_in_tokens)[0] == -best[1]


def test_slots_that_cannot_pay_are_not_asked_for():
    assert asked(Blocks(WIDTHS), 6, [0.2] * 5, DEAR) == (2, [0])
    assert asked(Blocks(WIDTHS), 6, [0.9, 0.9, 0.9, 0.1, 0.1], DEAR)[1] == [0, 1, 2]
    assert asked(Blocks(WIDTHS), 6, [0.99] * 5, CHEAP) == (6, [0, 1, 2, 3, 4])


def test_a_block_is_worth_what_it_promised_and_what_came_of_it_by_halves():
    blocks = Blocks(WIDTHS)
    assert not blocks
    assert asked(blocks, 6, [1.0] * 5, CHEAP)[0] == 6
    blocks.note(6, 2)
    assert blocks
    assert [blocks.tokens(width) for width in WIDTHS] == [(2 + 2) / 2, (4 + 3) / 2, (6 + 3) / 2]
    assert [blocks.mean(width, float) for width in WIDTHS] == list(WIDTHS)


def test_what_was_not_drafted_counts_as_sure_as_the_last_that_was():
    blocks = Blocks(WIDTHS)
    assert asked(blocks, 2, [1.0], CHEAP) == (2, [0])
    blocks.note(2, 1)
    assert [blocks.tokens(width) for width in WIDTHS] == [2, 4, 6]


def test_blocks_that_are_narrow_because_they_promise_little_cost_what_narrow_ones_do():
    blocks = Blocks(WIDTHS)
    for chances in ([0.1] * 5, [1.0] * 5):
        rows, _ = asked(blocks, 6, chances, (1.0, 1.54, 2.02))
        blocks.note(rows, rows - 1 if chances[0] == 1 else 0)
    assert 4 < blocks.mean(6, float) < 4.2, "one of two rows and one of six, of which the last counts more"


def test_nothing_is_noted_of_a_block_that_was_not_chosen_rows():
    blocks = Blocks(WIDTHS)
    blocks.note(4, 3)
    assert not blocks
    asked(blocks, 6, [0.5] * 5, CHEAP)
    blocks.begin()
    blocks.note(4, 3)
    assert not blocks


def test_another_text_soon_outweighs_what_was_before():
    blocks = Blocks(WIDTHS)
    for _ in range(100):
        blocks.note(asked(blocks, 6, [1.0] * 5, CHEAP)[0], 5)
    blocks.begin()
    for _ in range(6):
        blocks.note(asked(blocks, 6, [0.0] * 5, CHEAP)[0], 0)
    assert blocks.tokens(6) < 3
