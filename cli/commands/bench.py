"""`bench`: speed, acceptance, latency and memory of a bundle against a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dflash_compile.runtime.errors import ExitCode

from ..console import Console
from ..failure import as_error
from ..report import Report


def command(
    console: Console,
    bundle: Annotated[Path, typer.Argument(help="A directory that `build` wrote.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(
            "--suite",
            metavar="NAME|all|FILE|DIR",
            help="Prompts: a suite by name, a file of one a line, a folder of one a .txt; may be given again.",
        ),
    ] = None,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help=(
                "What to compare with, on the same bundle: `decode`, plain decoding, or `lookup`, with guesses from the"
                " text alone."
            ),
        ),
    ] = "decode",
    context: Annotated[
        str | None, typer.Option("--context", metavar="N,N,…", help="Measure speed at these prompt lengths as well.")
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Most prompts of each suite.")] = 8,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Most tokens of each answer.")] = 128,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs of each prompt on each side, by turns; medians count.")
    ] = 3,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE.html", help="Write tables and charts into one HTML file.")
    ] = None,
    provider: Annotated[Literal["cpu", "cuda"], typer.Option("--provider", help="Kind of device.")] = "cpu",
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads; every core by default.")] = None,
) -> Report:
    """Measure BUNDLE on prompt suites: DFlash and a baseline answer by turns, greedily, with the same weights, prompts
    and lengths.

    Exits with 1 when the answers differ.
    """
    import msgspec

    from dflash_compile.runtime import load

    from ..bench.answers import WARM_UP_TOKENS
    from ..bench.baselines import find_baseline
    from ..bench.context import read_lengths
    from ..bench.measure import bench
    from ..bench.records import SettingsRecord
    from ..bench.report import check_report, write_report
    from ..bench.suite import ALL, open_suites
    from ..bench.tables import tables

    if report is not None:
        check_report(report)
    side, suites, lengths = (
        find_baseline(baseline),
        open_suites(suite or [ALL], prompts),
        read_lengths(context) if context is not None else [],
    )
    settings = SettingsRecord(
        baseline=baseline,
        baseline_summary=side.SUMMARY,
        sampling="greedy",
        prompts=prompts,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        warm_up_tokens=WARM_UP_TOKENS,
        provider=provider,
        threads=threads,
    )
    with console.progress() as progress:
        progress("loading the bundle")
        with (
            load(bundle, provider=provider, threads=threads, verify="full") as session,
            side.open_baseline(bundle, session) as plain,
        ):
            record = bench(bundle, session, plain, suites, lengths, settings, progress)
        code = ExitCode.OK if record.lossless else ExitCode.CHECK_FAILED
        if report is not None:
            progress("writing the report")
            try:
                write_report(record, report)
            except OSError as fault:  # what was measured, perhaps for an hour, is printed all the same
                error = as_error(fault)
                console.err.write(f"error: {error}\n")
                code = error.exit_code
    for note in record.notes:
        console.note(f"note: {note}")
    return Report(msgspec.to_builtins(record), tables(record), code)
