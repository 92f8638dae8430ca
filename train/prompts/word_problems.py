"""Word problems with other people, things and numbers each time, in forms from one step of arithmetic to three."""

from __future__ import annotations

import random

from .data import read

_DATA: dict[str, list[str]] = read("word_problems")


def word_problem(rng: random.Random) -> str:
    """A user message: one of the forms with its numbers, and now and then how to answer."""
    a, b, c = rng.sample(_DATA["people"], 3)
    animals, animals2 = rng.sample(_DATA["animals"], 2)
    few, step = rng.randint(2, 9), rng.randint(2, 8)
    numbers = {
        "x": rng.randint(3, 40),
        "y": rng.randint(12, 60),
        "big": rng.randint(60, 500),
        "big2": 4 * rng.randint(5, 60),
    }
    series = {
        "ten": rng.choice([5, 10, 20, 25]),
        "few": few,
        "few2": few + step,
        "few3": few + 2 * step,
        "few4": few + 3 * step,
    }
    words = {
        "a": a,
        "b": b,
        "c": c,
        "thing": rng.choice(_DATA["things"]),
        "job": rng.choice(_DATA["jobs"]),
        "animals": animals,
        "animals2": animals2,
    }
    return rng.choice(_DATA["forms"]).format(**words, **numbers, **series) + rng.choice(_DATA["endings"])
