"""Bundles against other engines on the same CPU: llama.cpp, onnxruntime-genai, OpenVINO GenAI, transformers.

    python -m venv .peers && .peers/bin/pip install -r benchmarks/peers-requirements.txt
    python benchmarks/peers.py --bundle BUNDLE [--bundle BUNDLE ...] --python .peers/bin/python [--json]

The same target, prompts, threads and number of new tokens for all, greedily, in one interleaved run: each engine stays
open in a process of its own, and for every prompt they answer one after the other. What is not installed is left out
and named; `--python` is the Python that has the peers, by default the one that runs this. They read MODEL, the GGUF
file that the bundles were built from, in the forms that they take; what they make of it is kept in `--work`. A bundle
counts twice: decoding plainly, and with its drafter as wide as the session sees fit.

Exits with 1 when an engine failed, 2 for a wrong option.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from peer import Setup
from peer.conversion import work_folder
from peer.figures import SuiteFigures, figures
from peer.finding import ENGINES, OURS, engine_files, read_class
from peer.process import Engine, LeftOutError
from peer.rounds import SHORTEST, interleave, plan
from peer.table import tables

from dflash_compile.artifacts import ROOT
from dflash_compile.cli.bench.machine_record import machine_record
from dflash_compile.cli.bench.suite import open_suites
from dflash_compile.cli.machine import cores
from dflash_compile.export.checkpoints.references import locate
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import DFlashError, UsageError
from dflash_compile.runtime.text import open_text

PLAIN, DFLASH = "plain", "DFlash"


def main(words: list[str]) -> int:
    """Measure and print."""
    given = parse(words)
    try:
        return run(given)
    except DFlashError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(error.exit_code)
    except LeftOutError as fault:  # one that cannot be left out: a bundle
        print(f"error: {fault}", file=sys.stderr)
        return 1


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--bundle",
        type=Path,
        action="append",
        required=True,
        help="may be given again: of the same target, say at another precision",
    )
    parser.add_argument(
        "--model",
        default="smollm2-135m",
        help="GGUF file of the bundles' target, or the name of a packaged model (default: %(default)s)",
    )
    parser.add_argument(
        "--peer", action="append", help=f"may be given again; all by default: {', '.join(engine_files())}"
    )
    parser.add_argument(
        "--suite",
        action="append",
        help="as of `dflash-compile bench`; may be given again (default: chat, code, reasoning, tools)",
    )
    parser.add_argument(
        "--threads", type=int, default=cores(), help="of every engine (default: every core, %(default)s)"
    )
    parser.add_argument("--prompts", type=int, default=4, help="of each suite (default: %(default)s)")
    parser.add_argument("--new-tokens", type=int, default=128, help="of each answer, at most (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is asked (default: %(default)s)")
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="the Python in which the peers are installed (default: this one)",
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "bundles" / "peers", metavar="DIR", help="for the peers' forms of the model"
    )
    parser.add_argument("--engines", type=Path, default=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    for name in ("threads", "prompts", "rounds"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: at least 1")
    if given.new_tokens < SHORTEST:
        parser.error(f"--new-tokens: at least {SHORTEST}")
    if unknown := set(given.peer or ()) - set(engine_files(given.engines)):
        parser.error(f"--peer: unknown {', '.join(sorted(unknown))}; known: {', '.join(engine_files(given.engines))}")
    return given


def run(given: argparse.Namespace) -> int:
    """Open, ask, print."""
    model, prompts = Path(locate(given.model)), encoded(given)
    context = max(len(ids) for _, group in prompts for ids in group) + given.new_tokens
    work, left_out = work_folder(given.work, model), list[LeftOutError]()
    machine = machine_record(open_bundle(given.bundle[0], verify="size").manifest.requires.backend)
    with ExitStack() as stack:
        ours = {
            (bundle, way): stack.enter_context(
                Engine(f"{bundle.name} {way}", OURS, Setup(way, bundle, work, given.threads, context))
            )
            for bundle in given.bundle
            for way in (PLAIN, DFLASH)
        }
        others = []
        for name, file in engine_files(given.engines).items():
            for variant in read_class(file).VARIANTS if not given.peer or name in given.peer else ():
                say(f"opening {name} {variant}")
                try:
                    setup = Setup(variant, model, work, given.threads, context)
                    others.append(stack.enter_context(Engine(f"{name} {variant}", file, setup, given.python)))
                except LeftOutError as fault:
                    left_out.append(named(fault, file))
        say("asking the bundles how long their answers are")
        questions = plan([ours[bundle, PLAIN] for bundle in given.bundle], prompts, given.new_tokens)
        if not questions:
            raise UsageError(f"no prompt has an answer of {SHORTEST} tokens", fix="take other suites, or more prompts")
        engines = [*ours.values(), *others]
        turns, failed = interleave(engines, questions, given.rounds, say)
    left_out += failed
    engines = [engine for engine in engines if engine.name not in {fault.name for fault in failed}]
    drafting = [engine.name for (_, way), engine in ours.items() if way == DFLASH]
    if all(engine.name in drafting for engine in engines):
        raise failed[0]
    suites = figures(turns, questions, [engine.name for engine in engines], drafting)
    if given.json:
        print(json.dumps(document(given, machine, engines, suites, left_out)))
    else:
        show(suites, engines, left_out)
    return 0 if all(fault.missing for fault in left_out) else 1


def encoded(given: argparse.Namespace) -> list[tuple[str, list[list[int]]]]:
    """Prompts by suite in token ids, chat template included.

    Raises `UsageError` where the bundles do not agree on them.
    """
    suites = open_suites(given.suite or ["chat", "code", "reasoning", "tools"], given.prompts)
    found = []
    for bundle in given.bundle:
        text = open_text(open_bundle(bundle, verify="size"))
        found.append([(suite.name, [text.encode(prompt, raw=False) for prompt in suite.prompts]) for suite in suites])
    if any(other != found[0] for other in found):
        raise UsageError(
            "the bundles make different token ids of the same prompts",
            why="their targets differ",
            fix="give bundles of one target",
        )
    return found[0]


def named(fault: LeftOutError, file: Path) -> LeftOutError:
    """With what would help, where a library is missing."""
    return (
        LeftOutError(fault.name, f"{fault.why}; to have it: {read_class(file).INSTALL}", missing=True)
        if fault.missing
        else fault
    )


def document(
    given: argparse.Namespace,
    machine: Any,
    engines: Sequence[Engine],
    suites: Sequence[SuiteFigures],
    left_out: Sequence[LeftOutError],
) -> Any:
    """The JSON document."""
    names = ("threads", "prompts", "new_tokens", "rounds")
    return {
        "machine": msgspec.to_builtins(machine),
        "settings": {name: getattr(given, name) for name in names},
        "engines": [{"name": engine.name, "weights": engine.weights, "version": engine.version} for engine in engines],
        "left_out": [{"name": fault.name, "why": fault.why, "missing": fault.missing} for fault in left_out],
        "suites": [msgspec.to_builtins(suite) for suite in suites],
    }


def show(suites: Sequence[SuiteFigures], engines: Sequence[Engine], left_out: Sequence[LeftOutError]) -> None:
    """The tables; as wide as they need where nobody sees them at once."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    for part in tables(suites, engines, left_out):
        console.print(part, highlight=False, markup=False)


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
