"""Questions about a few lines of code that the prompt itself shows: explain, mend, shorten, extend, translate."""

from __future__ import annotations

import random

from .data import read

_DATA = read("snippets")


def snippet_prompt(rng: random.Random) -> str:
    """A user message: some lines of code, with or without a fence, before or after what is asked about them."""
    question: str
    slots = {"xs": rng.choice(_DATA["names"]), "n": rng.randint(3, 12), "language": rng.choice(_DATA["languages"])}
    if rng.random() < 0.35:
        code, part = rng.choice(_DATA["broken"])
        question = rng.choice(_DATA["mend"]).format(part=part)
    else:
        code, question = rng.choice(_DATA["shown"]), rng.choice(_DATA["asked"]).format(**slots)
    shown: str = code.format(**slots)
    if rng.random() < 0.6:
        shown = f"```\n{shown}\n```"
    return f"{shown}\n\n{question}" if rng.random() < 0.4 else f"{question}\n\n{shown}"
