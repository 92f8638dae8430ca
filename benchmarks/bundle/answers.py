"""τ and the cost of a cycle, by suite, bundle and width."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any

from dflash_compile.cli.bench.suite import open_suites
from dflash_compile.runtime import load
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics

SUITES = ("chat", "code", "reasoning", "tools")
_WARM_UP_TOKENS = 8


@dataclass
class Variant:
    """One bundle at one width, 0 for plain decoding: its answers, with the CPU seconds that each spent decoding."""

    session: Session
    width: int
    runs: list[Statistics] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def answer(self, prompt: str, tokens: int) -> list[int]:
        """Token ids of an answer, which counts unless it ends with its first token."""
        answer = self.session.tokens(prompt, max_new_tokens=tokens, draft=self.width > 0, block=self.width or None)
        first = next(answer)
        start = process_time()
        ids = [first, *answer]
        if self.session.statistics.cycles:
            self.runs.append(self.session.statistics)
            self.cpu.append(process_time() - start)
        return ids

    def row(self) -> dict[str, Any]:
        """τ, share of proposals accepted by slot, milliseconds of one draft call and of one cycle, prefill apart.

        A cycle costs what one of the median answer costs: some answers are disturbed by other jobs.
        """
        tau = sum(run.tokens - 1 for run in self.runs) / sum(run.cycles for run in self.runs)
        cycle = median(spent / run.cycles for spent, run in zip(self.cpu, self.runs, strict=True))
        offered, accepted = (
            [sum(counts) for counts in zip(*(getattr(run, name) for run in self.runs), strict=True)]
            for name in ("offered_at", "accepted_at")
        )
        drafts = [run.seconds["draft"] / run.drafted for run in self.runs if run.drafted]
        return {
            "width": self.width,
            "tau": round(tau, 3),
            "accepted": [round(taken / given, 3) for taken, given in zip(accepted, offered, strict=True) if given],
            "draft_ms": round(1000 * median(drafts), 2) if drafts else 0.0,
            "cycle_ms": round(1000 * median(run.decode_seconds / run.cycles for run in self.runs), 2),
            "cycle_cpu_ms": round(1000 * cycle, 2),
            "tokens_per_cpu_second": round(tau / cycle, 2),
        }


def interleave(variants: Sequence[Variant], prompts: Sequence[str], tokens: int) -> bool:
    """Every variant's answer to one prompt after the other; whether all answers to each were equal."""
    for variant in variants:
        list(variant.session.tokens(prompts[0], max_new_tokens=_WARM_UP_TOKENS, block=variant.width or None))
    different = [len({tuple(variant.answer(prompt, tokens)) for variant in variants}) for prompt in prompts]
    return max(different) == 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `answers`."""
    parser.add_argument("--suite", action="append", help="as of `dflash-compile bench`; the four short ones by default")
    parser.add_argument("--width", type=int, action="append", help="rows of a block; may be given again")
    parser.add_argument("--prompts", type=int, default=8, help="of each suite")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)


def measure(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """Rows, and whether any answers differed."""
    rows, equal = [], True
    with ExitStack() as stack:
        sessions = [stack.enter_context(load(bundle, threads=given.threads)) for bundle in given.bundles]
        for suite in open_suites(given.suite or SUITES, given.prompts):
            named = [
                (bundle.name, Variant(session, width))
                for bundle, session in zip(given.bundles, sessions, strict=True)
                for width in given.width or [session.manifest.pairing.block]
            ]
            named += [(given.bundles[0].name, Variant(sessions[0], 0))] if given.width else []
            equal &= interleave([variant for _, variant in named], suite.prompts, given.max_new_tokens)
            found = [{"suite": suite.name, "bundle": name, **variant.row()} for name, variant in named]
            if given.width:
                step = found[-1]["cycle_cpu_ms"]
                found = [{**row, "plain_steps": round(row["cycle_cpu_ms"] / step, 3)} for row in found]
            rows += found
    return rows, not equal
