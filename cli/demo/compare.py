"""DFlash against plain decoding on the same bundle: the same tokens, and how long each took.

Both sides take turns on every prompt, so that whatever else the machine does falls on both alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics

from .prompts import DemoPrompt

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class PromptResult:
    """One prompt, both ways. Speeds are medians of decoding alone, in tokens per second."""

    kind: str
    prompt: str
    text: str
    tokens: int
    cycles: int
    identical: bool
    """every repetition of both sides gave the same token ids"""
    tokens_per_second: float
    baseline_tokens_per_second: float
    seconds: float
    """median of decoding with the drafter"""
    baseline_seconds: float

    @property
    def tau(self) -> float:
        """Tokens per cycle; the first token comes from prefill."""
        return (self.tokens - 1) / self.cycles if self.cycles else 0.0

    @property
    def speedup(self) -> float:
        """Plain decoding time over DFlash time."""
        return self.baseline_seconds / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Comparison:
    """All prompts together. Rates and τ weigh every token alike, so long answers count for more."""

    results: tuple[PromptResult, ...]

    @property
    def lossless(self) -> bool:
        """All token ids of both sides are equal."""
        return all(result.identical for result in self.results)

    @property
    def tokens(self) -> int:
        """Generated with the drafter, each prompt counted once."""
        return sum(result.tokens for result in self.results)

    @property
    def tau(self) -> float:
        """Mean tokens per cycle."""
        cycles = sum(result.cycles for result in self.results)
        return (self.tokens - len(self.results)) / cycles if cycles else 0.0

    @property
    def tokens_per_second(self) -> float:
        """With the drafter."""
        return self._rate(sum(result.seconds for result in self.results))

    @property
    def baseline_tokens_per_second(self) -> float:
        """Without it."""
        return self._rate(sum(result.baseline_seconds for result in self.results))

    @property
    def speedup(self) -> float:
        """How many times faster than plain decoding; below 1 the drafter costs more than it saves."""
        return self.tokens_per_second / self.baseline_tokens_per_second if self.baseline_tokens_per_second > 0 else 0.0

    def _rate(self, seconds: float) -> float:
        return (self.tokens - len(self.results)) / seconds if seconds > 0 else 0.0


def compare(session: Session, prompts: Sequence[DemoPrompt], max_new_tokens: int, repeats: int, progress: Callable[[str, int, int], None]) -> Comparison:
    """Generate greedily for every prompt, `repeats` times with the drafter and as often without it, taking turns."""
    progress("warming up", 0, 0)
    for draft in (True, False):
        _run(session, prompts[0].text, WARM_UP_TOKENS, draft)
    results = []
    for number, prompt in enumerate(prompts):
        progress("generating with and without the drafter", number, len(prompts))
        results.append(_compare_one(session, prompt, max_new_tokens, repeats))
    progress("generating with and without the drafter", len(prompts), len(prompts))
    return Comparison(tuple(results))


def _compare_one(session: Session, prompt: DemoPrompt, max_new_tokens: int, repeats: int) -> PromptResult:
    runs: dict[bool, list[tuple[list[int], Statistics]]] = {True: [], False: []}
    for repeat in range(repeats):
        for draft in (True, False) if repeat % 2 == 0 else (False, True):
            runs[draft].append(_run(session, prompt.text, max_new_tokens, draft))
    tokens, with_drafter = runs[True][0]
    fast, plain = (median(statistics.decode_seconds for _, statistics in runs[draft]) for draft in (True, False))
    return PromptResult(
        kind=prompt.kind,
        prompt=prompt.text,
        text="".join(session.generate(prompt.text, max_new_tokens=max_new_tokens)),
        tokens=len(tokens),
        cycles=with_drafter.cycles,
        identical=all(ids == tokens for ids, _ in (*runs[True], *runs[False])),
        tokens_per_second=median(statistics.tokens_per_second for _, statistics in runs[True]),
        baseline_tokens_per_second=median(statistics.tokens_per_second for _, statistics in runs[False]),
        seconds=fast,
        baseline_seconds=plain,
    )


def _run(session: Session, prompt: str, max_new_tokens: int, draft: bool) -> tuple[list[int], Statistics]:
    tokens = list(session.tokens(prompt, max_new_tokens=max_new_tokens, draft=draft))
    return tokens, session.statistics
