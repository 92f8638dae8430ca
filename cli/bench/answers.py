"""All answers to one prompt: the sides take turns, so that whatever else the machine does falls on all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from dflash_compile.runtime.text import Prompt

from .run import Run
from .sides import BASELINE, BLOCKS, DFLASH, Side
from .totals import Totals

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Answers:
    """By side, in the order they were given."""

    runs: Mapping[str, tuple[Run, ...]]

    @property
    def identical(self) -> bool:
        """Every repetition of every side gave the same token ids."""
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

    def typical(self, side: str) -> Run:
        """The run of `side` with the median decoding time (the faster of two): its roles add up to a time that was
        really taken.
        """
        return sorted(self.runs[side], key=lambda run: run.decode_seconds)[(len(self.runs[side]) - 1) // 2]


def warm_up(sides: Mapping[str, Side], prompt: Prompt) -> None:
    """A short answer of every side: engines allocate and bind on their first calls."""
    for side in sides.values():
        side.run(prompt, WARM_UP_TOKENS)


def interleave(
    sides: Mapping[str, Side],
    prompt: Prompt,
    max_new_tokens: int,
    repeats: int,
    tick: Callable[[], None] = lambda: None,
) -> Answers:
    """`repeats` answers of every side, forth and back through the sides by turns; `tick` is called before each."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name in list(sides)[:: 1 if repeat % 2 == 0 else -1]:
            tick()
            runs[name].append(sides[name].run(prompt, max_new_tokens))
    return Answers({name: tuple(answers) for name, answers in runs.items()})
