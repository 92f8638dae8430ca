"""Several bundles of one target side by side: how well they draft, what their calls cost, how long they take to open.

    python benchmarks/bundles.py answers BUNDLE... [--width 2 --width 4] [--suite code] [--prompts 8]
    python benchmarks/bundles.py calls BUNDLE... [--position 128] [--rounds 30] [--tokens 128]
    python benchmarks/bundles.py load BUNDLE... [--repeats 5] [--fill] [--cache DIR]

`answers`: τ of whole blocks, or of blocks of every `--width`, exact and the same each time; with `--width` plain
decoding of the first bundle as well, and the cost of a cycle in plain steps. CPU time counts all threads of this
process and nobody else's. Exits with 1 when answers differ, which those of one target at one precision never do.

`calls`: CPU milliseconds of every call by role and width, one thread; "prompt" is filling the caches up to
`--position`. Then the host's share of a cycle in answers of `--tokens` tokens in each way of decoding, 0 for none.

`load`: every load in a process of its own. "nothing kept" hashes every file and packs every weight, "first" does the
same and keeps both, "kept" finds them. `--fill` fills the caches by a prompt. MiB as Linux accounts for it: `anonymous`
is the process's own, `mapped` are pages of files, `bound` is 1.2 times weights and caches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bundle import answers, calls, loading

from dflash_compile.runtime.errors import DFlashError


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    questions = parser.add_subparsers(required=True, metavar="answers|calls|load")
    for name, part in (("answers", answers), ("calls", calls), ("load", loading)):
        options = questions.add_parser(name, help=part.__doc__)
        options.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
        options.add_argument("--json", action="store_true", help="one document instead of lines")
        part.add_options(options)
        options.set_defaults(measure=part.measure)
    given = parser.parse_args(words)
    try:
        rows, code = given.measure(given)
    except DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    if given.json:
        print(json.dumps(rows))
    else:
        print("\n".join("  ".join(f"{key} {value}" for key, value in row.items()) for row in rows))
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
