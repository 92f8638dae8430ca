"""Prompts of the demo, of the kinds people use small models for.

None of them is, or is made from, a training prompt.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DemoPrompt:
    """A user message and what kind of work it asks for."""

    kind: str
    text: str


PROMPTS = (
    DemoPrompt(
        "code",
        "In Python, define `slugify(title)`: lowercase the title, replace every run of other characters by one hyphen,"
        " and strip hyphens at both ends.",
    ),
    DemoPrompt(
        "tool call",
        'The only tool is {"name": "set_thermostat", "parameters": {"room": "string", "celsius": "number"}}. Make it'
        " nineteen degrees in the bedroom.",
    ),
    DemoPrompt(
        "reasoning",
        "The ferry leaves the harbour at 9:40 and the crossing takes 2 hours and 35 minutes. When does it dock? Think"
        " it through before you answer.",
    ),
    DemoPrompt(
        "chat",
        "My neighbour's drumming keeps me awake on weeknights. How could I bring it up with him without a quarrel?",
    ),
    DemoPrompt(
        "extraction",
        "Put the ingredients and their amounts into a bulleted list: whisk 3 eggs with 200 ml of milk, stir in 120 g of"
        " flour.",
    ),
    DemoPrompt("debugging", "This loop never ends: `while i < 10: print(i)`. What is missing?"),
    DemoPrompt(
        "configuration", "I have a small Flask app in app.py that listens on port 8080. Write a Dockerfile for it."
    ),
    DemoPrompt("explanation", "How does a canal lock lift a boat from the lower level to the upper one?"),
)
