"""DFlash against plain decoding on the same bundle: the same tokens, and how long each took.

Three sides take turns on every prompt, so that whatever else the machine does falls on all alike: whole blocks, which show what the drafter can do
(τ); the default, in which the session decides how wide to draft and whether (speed); and plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics

from ..progress import Progress
from .prompts import DemoPrompt
from .tally import Tally

Side = Literal["blocks", "default", "plain"]
SIDES: tuple[Side, ...] = ("blocks", "default", "plain")
WARM_UP_TOKENS = 16
STEP = "generating with and without the drafter"


@dataclass(frozen=True)
class PromptResult:
    """One prompt on all sides; its times are medians over the repetitions."""

    prompt: DemoPrompt
    text: str
    identical: bool
    """every repetition of every side gave the same token ids"""
    tally: Tally


@dataclass(frozen=True)
class Comparison:
    """All prompts, in order."""

    results: tuple[PromptResult, ...]

    @property
    def lossless(self) -> bool:
        """All token ids of all sides are equal."""
        return all(result.identical for result in self.results)

    @property
    def total(self) -> Tally:
        """Of all prompts: every token weighs the same, so long answers count for more."""
        return sum((result.tally for result in self.results), start=Tally())


@dataclass(frozen=True)
class _Run:
    tokens: list[int]
    text: str
    statistics: Statistics


def compare(session: Session, prompts: Sequence[DemoPrompt], max_new_tokens: int, repeats: int, progress: Progress) -> Comparison:
    """Generate greedily for every prompt, `repeats` times on each side, taking turns."""
    progress("warming up")
    for side in SIDES:
        _run(session, prompts[0], WARM_UP_TOKENS, side)
    results = []
    for number, prompt in enumerate(prompts):
        progress(STEP, number, len(prompts))
        results.append(_compare_one(session, prompt, max_new_tokens, repeats))
    progress(STEP, len(prompts), len(prompts))
    return Comparison(tuple(results))


def _compare_one(session: Session, prompt: DemoPrompt, max_new_tokens: int, repeats: int) -> PromptResult:
    runs: dict[Side, list[_Run]] = {side: [] for side in SIDES}
    for repeat in range(repeats):
        for side in SIDES if repeat % 2 == 0 else SIDES[::-1]:
            runs[side].append(_run(session, prompt, max_new_tokens, side))
    first = runs["blocks"][0]
    tally = Tally(
        tokens=len(first.tokens),
        decoded=max(len(first.tokens) - 1, 0),
        cycles=first.statistics.cycles,
        seconds=median(run.statistics.decode_seconds for run in runs["default"]),
        baseline_seconds=median(run.statistics.decode_seconds for run in runs["plain"]),
    )
    return PromptResult(prompt, first.text, all(run.tokens == first.tokens for side in runs.values() for run in side), tally)


def _run(session: Session, prompt: DemoPrompt, max_new_tokens: int, side: Side) -> _Run:
    tokens: list[int] = []
    block = session.manifest.pairing.block if side == "blocks" else None
    text = "".join(session.generate(prompt.text, max_new_tokens=max_new_tokens, draft=side != "plain", block=block, on_token=tokens.append))
    return _Run(tokens, text, session.statistics)
