"""Messages of five categories, filled with word lists."""

from __future__ import annotations

import random

from .data import read

_DATA = read("templates")
SLOTS: dict[str, list[str]] = _DATA["slots"]
TEMPLATES: dict[str, list[str]] = _DATA["templates"]
"""by category"""


def templated(category: str, rng: random.Random) -> str:
    """A user message of `category`."""
    return _fill(rng.choice(TEMPLATES[category]), rng)


def _fill(template: str, rng: random.Random) -> str:
    small = rng.randint(2, 12)
    values = {slot: rng.choice(words) for slot, words in SLOTS.items()}
    step = rng.randint(2, 9)
    people = rng.sample(SLOTS["person"], 3)
    values |= {"person": people[0], "person2": people[1], "person3": people[2]}
    values |= {"food2": rng.choice([food for food in SLOTS["food"] if food != values["food"]])}
    values |= {"n": str(small), "n2": str(small + step), "n3": str(small + 2 * step)}
    values |= {"m": str(rng.randint(3, 30)), "big": str(rng.randint(40, 400))}
    values |= {
        "noun": rng.choice(["news", "papers", "books", "events", "songs"]),
        "field": rng.choice(["query", "city", "name"]),
    }
    return template.format(**values)
