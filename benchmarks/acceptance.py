"""τ of several bundles of one target, side by side: what a change of the drafter, or of its graph, does to its guesses.

    python benchmarks/acceptance.py BUNDLE [BUNDLE ...] [--suite code] [--prompts 8] [--max-new-tokens 128] [--json]

Bundles take turns on every prompt, drafting whole blocks, so τ is exact and repeats. Times are medians over prompts; CPU time
counts all threads of this process and nobody else's, so on a busy machine it says more than the clock.
Exits with 1 when the bundles' answers differ, which those of one target at one precision never do.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time

from dflash_compile.runtime import load
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Statistics

SUITES = Path(__file__).parents[1] / "artifacts" / "prompts"


@dataclass
class Side:
    """One bundle's runs of one suite, with the CPU seconds that each spent decoding."""

    runs: list[Statistics] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float | list[float]]:
        """τ, share of proposals accepted by slot, and milliseconds of one draft call and of one cycle, prefill apart."""
        cycles = sum(run.cycles for run in self.runs)
        offered, accepted = ([sum(counts) for counts in zip(*(getattr(run, name) for run in self.runs), strict=True)] for name in ("offered_at", "accepted_at"))
        return {
            "tau": round(sum(run.tokens - 1 for run in self.runs) / cycles, 3),
            "accepted": [round(taken / given, 3) for taken, given in zip(accepted, offered, strict=True) if given],
            "draft_ms": round(1000 * median(run.seconds["draft"] / run.drafted for run in self.runs), 2),
            "cycle_ms": round(1000 * median(run.decode_seconds / run.cycles for run in self.runs), 2),
            "cycle_cpu_ms": round(1000 * median(spent / run.cycles for spent, run in zip(self.cpu, self.runs, strict=True)), 2),
        }


def suite_names() -> list[str]:
    """Every suite of one-line prompts, sorted."""
    return sorted(file.stem for file in SUITES.glob("*.txt"))


def measure(sessions: Sequence[Session], prompts: Sequence[str], tokens: int) -> tuple[list[Side], bool]:
    """Every session's runs, and whether all answers were equal."""
    sides, equal = [Side() for _ in sessions], True
    for prompt in prompts:
        answers = []
        for session, side in zip(sessions, sides, strict=True):
            answer = session.tokens(prompt, max_new_tokens=tokens, block=session.manifest.pairing.block)
            first = next(answer)
            start = process_time()
            answers.append([first, *answer])
            if session.statistics.cycles:
                side.runs.append(session.statistics)
                side.cpu.append(process_time() - start)
        equal = equal and all(answer == answers[0] for answer in answers)
    return sides, equal


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--suite", choices=suite_names(), action="append", help="may be given again; all by default")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows, equal = [], True
    with ExitStack() as stack:
        sessions = [stack.enter_context(load(bundle, threads=arguments.threads)) for bundle in arguments.bundles]
        for session in sessions:
            list(session.tokens("Hello", max_new_tokens=8))
        for suite in arguments.suite or suite_names():
            prompts = (SUITES / f"{suite}.txt").read_text(encoding="utf-8").splitlines()[: arguments.prompts]
            sides, same = measure(sessions, prompts, arguments.max_new_tokens)
            equal = equal and same
            for bundle, side in zip(arguments.bundles, sides, strict=True):
                rows.append({"suite": suite, "bundle": bundle.name, **side.row()})
                if not arguments.json:
                    print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"equal": equal, "rows": rows}))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
