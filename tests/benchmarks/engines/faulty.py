"""An engine that fails in every way there is, when it opens or in its second answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from peer import Setup


class Faulty:
    VARIANTS: ClassVar = ("opening", "crashing", "raising", "short")
    INSTALL: ClassVar = "nothing"

    def __init__(self, setup: Setup) -> None:
        if setup.variant == "opening":
            raise RuntimeError("a damaged file")
        self.version, self.weights, self.variant, self.answers = "1.0", "none", setup.variant, 0

    def generate(self, prompt: Sequence[int], new_tokens: int, on_token: Callable[[int], None]) -> Mapping[str, float]:
        self.answers += 1
        if self.answers == 2 and self.variant == "crashing":
            os._exit(7)
        if self.answers == 2 and self.variant == "raising":
            raise ValueError("out of luck")
        for _ in range(new_tokens - (self.answers == 2 and self.variant == "short")):
            on_token(0)
        return {}


PEER = Faulty
