"""All answers to one prompt: the variants take turns, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from dflash_compile.runtime.text import Prompt

from .run import Run
from .totals import Totals
from .variants import BASELINE, BLOCKS, DFLASH, Variant

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Answers:
    """By variant, in the order they were given."""

    runs: Mapping[str, tuple[Run, ...]]

    @property
    def identical(self) -> bool:
        """Every repetition of every variant gave the same token ids."""
        return len({run.tokens for runs in self.runs.values() for run in runs}) == 1

    @property
    def totals(self) -> Totals:
        """Counts of whole blocks; times of the session's own choice and of the baseline, medians over the
        repetitions.
        """
        first = self.runs[BLOCKS][0]
        return Totals(
            tokens=len(first.tokens),
            decoded=first.decoded,
            cycles=first.statistics.cycles,
            seconds=median(run.decode_seconds for run in self.runs[DFLASH]),
            baseline_seconds=median(run.decode_seconds for run in self.runs[BASELINE]),
        )

    def typical(self, variant: str) -> Run:
        """The run of `variant` with the median decoding time (the faster of two): its roles add up to a time that was
        really taken.
        """
        return sorted(self.runs[variant], key=lambda run: run.decode_seconds)[(len(self.runs[variant]) - 1) // 2]


def warm_up(variants: Mapping[str, Variant], prompt: Prompt) -> None:
    """A short answer of every variant: engines allocate and bind on their first calls."""
    for variant in variants.values():
        variant.run(prompt, WARM_UP_TOKENS)


def interleave(
    variants: Mapping[str, Variant],
    prompt: Prompt,
    max_new_tokens: int,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
) -> Answers:
    """`repeats` answers of every variant, forth and back by turns; `tick` is called before each."""
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for repeat in range(repeats):
        for name in list(variants)[:: 1 if repeat % 2 == 0 else -1]:
            tick()
            runs[name].append(variants[name].run(prompt, max_new_tokens))
    return Answers({name: tuple(answers) for name, answers in runs.items()})
