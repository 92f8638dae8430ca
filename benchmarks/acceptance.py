"""τ of several bundles of one target, side by side: what a change of the drafter, or of its graph, does to its guesses.

    python benchmarks/acceptance.py BUNDLE [BUNDLE ...] [--width 2 --width 4] [--suite code] [--prompts 8]
    [--max-new-tokens 128] [--json]

Bundles take turns on every prompt, drafting whole blocks, or blocks of every `--width`, so τ is exact and repeats. With
`--width`, plain decoding of the first bundle takes its turn as well, and what a cycle costs is told in plain steps too.
Times are medians over prompts; CPU time counts all threads of this process and nobody else's, so on a busy machine it
says more than the clock. Exits with 1 when the bundles' answers differ, which those of one target at one precision
never do.
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
    """One bundle's runs of one suite at one width, 0 for plain decoding, with the CPU seconds that each spent
    decoding.
    """

    session: Session
    width: int
    runs: list[Statistics] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def row(self) -> dict[str, float | list[float]]:
        """τ, share of proposals accepted by slot, and milliseconds of one draft call and of one cycle, prefill
        apart.
        """
        cycles, drafted = sum(run.cycles for run in self.runs), self.width > 0
        offered, accepted = (
            [sum(counts) for counts in zip(*(getattr(run, name) for run in self.runs), strict=True)]
            for name in ("offered_at", "accepted_at")
        )
        return {
            "tau": round(sum(run.tokens - 1 for run in self.runs) / cycles, 3),
            "accepted": [round(taken / given, 3) for taken, given in zip(accepted, offered, strict=True) if given],
            "draft_ms": (
                round(1000 * median(run.seconds["draft"] / run.drafted for run in self.runs), 2) if drafted else 0.0
            ),
            "cycle_ms": round(1000 * median(run.decode_seconds / run.cycles for run in self.runs), 2),
            "cycle_cpu_ms": round(
                1000 * median(spent / run.cycles for spent, run in zip(self.cpu, self.runs, strict=True)), 2
            ),
        }


def suite_names() -> list[str]:
    """Every suite of one-line prompts, sorted."""
    return sorted(file.stem for file in SUITES.glob("*.txt"))


def measure(sides: Sequence[Side], prompts: Sequence[str], tokens: int) -> bool:
    """Every side's runs, by turns; whether all answers were equal."""
    equal = True
    for prompt in prompts:
        answers = []
        for side in sides:
            answer = side.session.tokens(prompt, max_new_tokens=tokens, draft=side.width > 0, block=side.width or None)
            first = next(answer)
            start = process_time()
            answers.append([first, *answer])
            if side.session.statistics.cycles:
                side.runs.append(side.session.statistics)
                side.cpu.append(process_time() - start)
        equal = equal and all(answer == answers[0] for answer in answers)
    return equal


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--suite", choices=suite_names(), action="append", help="may be given again; all by default")
    parser.add_argument(
        "--width",
        type=int,
        action="append",
        help="rows of a block, at most the bundle's; may be given again; whole blocks by default",
    )
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
            sides = [
                Side(session, width)
                for session in sessions
                for width in arguments.width or [session.manifest.pairing.block]
            ]
            sides += [Side(sessions[0], 0)] if arguments.width else []
            equal = measure(sides, prompts, arguments.max_new_tokens) and equal
            step = sides[-1].row()["cycle_cpu_ms"] if arguments.width else None
            for side in sides:
                bundle, row = arguments.bundles[sessions.index(side.session)], side.row()
                steps = {} if step is None else {"plain_steps": round(row["cycle_cpu_ms"] / step, 3)}
                rows.append({"suite": suite, "bundle": bundle.name, "width": side.width, **row, **steps})
                if not arguments.json:
                    print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"equal": equal, "rows": rows}))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
