"""DFlash against plain decoding on the same bundle: the same tokens, and how long each took.

Three variants take turns on every prompt, so that whatever else the machine does falls on all alike: whole blocks,
which show what the drafter can do (τ); the default, in which the session decides how wide to draft and whether (speed);
and plain decoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash_compile.runtime.session import Session

from ..bench.answers import interleave, warm_up
from ..bench.totals import Totals
from ..bench.variants import BASELINE, BLOCKS, SessionVariant, Variant, drafting_variants
from ..progress import ProgressDisplay
from .prompts import DemoPrompt

STEP = "generating with and without the drafter"


@dataclass(frozen=True)
class PromptResult:
    """One prompt on all variants; its times are medians over the repetitions."""

    prompt: DemoPrompt
    text: str
    identical: bool
    """every repetition of every variant gave the same token ids"""
    totals: Totals


@dataclass(frozen=True)
class Comparison:
    """All prompts, in order."""

    results: tuple[PromptResult, ...]

    @property
    def lossless(self) -> bool:
        """All token ids of all variants are equal."""
        return all(result.identical for result in self.results)

    @property
    def total(self) -> Totals:
        """Of all prompts: every token weighs the same, so long answers count for more."""
        return sum((result.totals for result in self.results), start=Totals())


def compare(
    session: Session, prompts: Sequence[DemoPrompt], max_new_tokens: int, repeats: int, progress: ProgressDisplay
) -> Comparison:
    """Generate greedily for every prompt, `repeats` times on each variant, taking turns."""
    variants = {**drafting_variants(session), BASELINE: SessionVariant(session, draft=False)}
    progress("warming up")
    warm_up(variants, prompts[0].text)
    results = []
    for number, prompt in enumerate(prompts):
        progress(STEP, number, len(prompts))
        results.append(_compare_one(variants, prompt, max_new_tokens, repeats))
    progress(STEP, len(prompts), len(prompts))
    return Comparison(tuple(results))


def _compare_one(
    variants: Mapping[str, Variant], prompt: DemoPrompt, max_new_tokens: int, repeats: int
) -> PromptResult:
    answers = interleave(variants, prompt.text, max_new_tokens, repeats)
    return PromptResult(prompt, answers.runs[BLOCKS][0].text, answers.identical, answers.totals)
