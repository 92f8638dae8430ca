"""τ and speed on the held-out prompt suites, with the drafter and without, taking turns.

    python benchmarks/suites.py BUNDLE [--suite code] [--prompts 20] [--max-new-tokens 128] [--repeats 1] [--json]

Prints one row per suite; exits with 1 when any answer differs from plain decoding's.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dflash_compile.cli.demo.compare import Comparison, compare
from dflash_compile.cli.demo.prompts import DemoPrompt
from dflash_compile.runtime import load

SUITES = Path(__file__).parent / "prompts"


def suite_names() -> list[str]:
    """Every suite there is, sorted."""
    return sorted(file.stem for file in SUITES.glob("*.txt"))


def suite(name: str, count: int) -> list[DemoPrompt]:
    """The first `count` prompts of suite `name`."""
    return [DemoPrompt(name, line) for line in (SUITES / f"{name}.txt").read_text(encoding="utf-8").splitlines()[:count]]


def row(name: str, result: Comparison) -> dict[str, object]:
    """A suite's figures."""
    return {"suite": name, "lossless": result.lossless, **{key: round(value, 3) for key, value in result.total.as_dict().items()}}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--suite", choices=suite_names(), action="append", help="may be given again; all by default")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with load(arguments.bundle) as session:
        for name in arguments.suite or suite_names():
            prompts = suite(name, arguments.prompts)
            result = compare(session, prompts, arguments.max_new_tokens, arguments.repeats, lambda *_, **__: None)
            rows.append(row(name, result))
            if not arguments.json:
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({"suites": rows}))
    return 0 if all(row["lossless"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
