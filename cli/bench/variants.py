"""The variants of a comparison: ways to answer the same prompt greedily with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol

from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics
from dflash_compile.runtime.text import Prompt

from .run import Run

DFLASH: Final = "dflash"
"""drafting as wide as the session sees fit, or not at all: what an app gets"""
BLOCKS: Final = "blocks"
"""drafting whole blocks always: what the drafter can do, the same on every machine"""
BASELINE: Final = "baseline"


class Variant(Protocol):
    """Answers a prompt greedily."""

    def run(self, prompt: Prompt, max_new_tokens: int) -> Run:
        """The whole answer and its times."""
        ...


@dataclass(frozen=True)
class SessionVariant:
    """A loaded bundle, used in one of its ways."""

    session: Session
    draft: bool = True
    block: int | None = None
    """rows of every block; None leaves the width to the session"""
    lookup: bool | None = None
    """look-ups; None leaves them to the session"""

    def run(self, prompt: Prompt, max_new_tokens: int) -> Run:
        session, tokens = self.session, list[int]()
        first: list[tuple[float, Statistics]] = []

        def on_token(token: int) -> None:
            if not tokens:
                first.append((perf_counter(), session.statistics))
            tokens.append(token)

        asked = perf_counter()
        pieces = session.generate(
            prompt,
            max_new_tokens=max_new_tokens,
            draft=self.draft,
            block=self.block,
            lookup=self.lookup,
            on_token=on_token,
        )
        text = "".join(pieces)
        latency = perf_counter() - asked
        began, begun = first[0]
        return Run(tuple(tokens), text, began - asked, latency, begun, session.statistics)


def drafting_variants(session: Session) -> dict[str, Variant]:
    """Both ways to draft."""
    return {BLOCKS: SessionVariant(session, block=session.manifest.pairing.block), DFLASH: SessionVariant(session)}


def widths(block: int) -> Sequence[int]:
    """Block widths worth measuring: 2, doubled, and the whole block."""
    return sorted({*(2**power for power in range(1, block.bit_length()) if 2**power <= block), block})
