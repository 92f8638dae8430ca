"""How far a drafter's word is believed."""

from __future__ import annotations

import random

import pytest

from dflash_compile.runtime.policy.confidence import Calibration

SAID = [0.0, 0.05, 0.5, 0.95, 1.0]


@pytest.mark.parametrize("said", SAID)
def test_a_drafter_is_believed_before_anything_was_seen(said):
    assert Calibration().of(said) == pytest.approx(said)


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_what_comes_of_its_proposals_is_believed_in_the_end(said, share):
    calibration, noise = Calibration(), random.Random(0)
    for _ in range(400):
        calibration.note(said, noise.random() < share)
    assert calibration.of(said) == pytest.approx(share, abs=0.15)


def test_one_that_always_says_too_much_is_doubted_where_nothing_was_seen_yet():
    calibration = Calibration()
    for _ in range(8):
        calibration.note(0.95, accepted=False)
    assert calibration.of(0.5) < 0.15
    assert calibration.of(0.95) < 0.15


def test_one_that_is_right_stays_believed_where_nothing_was_seen_yet():
    calibration, noise = Calibration(), random.Random(1)
    for _ in range(400):
        calibration.note(0.8, noise.random() < 0.8)
    assert calibration.of(0.3) == pytest.approx(0.3, abs=0.05)


def test_chances_are_never_beyond_one():
    calibration = Calibration()
    for _ in range(50):
        calibration.note(0.1, accepted=True)
    assert all(0 <= calibration.of(step / 20) <= 1 for step in range(21))
