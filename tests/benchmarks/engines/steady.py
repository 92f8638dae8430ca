"""An engine that counts up from the last token of the prompt, and prints what it should not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from peer import Setup


class Steady:
    VARIANTS: ClassVar = ("once", "twice")
    INSTALL: ClassVar = "nothing"

    def __init__(self, setup: Setup) -> None:
        self.step = 1 + self.VARIANTS.index(setup.variant)
        self.version, self.weights = "1.0", f"none; {setup.threads} threads; {setup.model.name}"
        print("a library prints this")  # noqa: T201

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        print("and this")  # noqa: T201
        for place in range(new_tokens):
            on_token(prompt[-1] + self.step * (place + 1))
        return {}


PEER = Steady
