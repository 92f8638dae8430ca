"""Requests for programs: a piece of work, a language, a wish and a way of asking, drawn apart, so that they seldom meet
twice.
"""

from __future__ import annotations

import random

from .data import read

_DATA = read("programming")
WORDS: dict[str, list[str]] = _DATA["words"]
"""of each slot that is filled on its own"""
WORK: dict[str, list[str]] = _DATA["work"]
"""what is to be done, by kind"""


def programming_prompt(rng: random.Random) -> str:
    """A user message that asks for code, or for help with it."""
    work = rng.choice(WORK[rng.choice(_DATA["kinds"])]).format(**_slots(rng))
    asked: str = rng.choice(_DATA["asked"]).format(work=work, Work=work[0].upper() + work[1:])
    return asked + str(rng.choice(_DATA["wish"]))


def _slots(rng: random.Random) -> dict[str, str]:
    fields, operations = rng.sample(_DATA["field"], 3), rng.sample(_DATA["operation"], 2)
    thing = rng.choice(_DATA["thing"])
    algorithm = rng.choice(WORDS["algorithm"])
    numbers = rng.sample(range(1, 60), rng.randint(4, 7))
    # Drawn in this order, a seed gives the prompts that docs/benchmarks.md calibrated with.
    alone = {slot: rng.choice(words) for slot, words in WORDS.items() if slot != "algorithm"}
    return alone | {
        "algorithm": algorithm,
        "numbers": str(numbers),
        "operation": operations[0],
        "operation2": operations[1],
        "a_thing": f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}",
        "thing": thing,
        "Thing": thing.title().replace(" ", ""),
        "field": fields[0],
        "field2": fields[1],
        "field3": fields[2],
        "n": str(rng.randint(2, 9)),
    }
