"""`demo`: build the packaged model, generate with and without its drafter, and compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dflash_compile.runtime.errors import ExitCode

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from ..demo.compare import Comparison

DEFAULT = Path("artifacts/bundles/smollm2-135m")


def command(
    console: Console,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Where the bundle goes; used again while nothing it is made from changes.",
        ),
    ] = DEFAULT,
    precision: Annotated[Literal["int8", "int4", "fp32"], typer.Option("--precision", help="Of the weights.")] = "int8",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=2, help="Most tokens of each answer.")] = 128,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, help="Runs of each prompt on each side; the median counts.")
    ] = 3,
) -> Report:
    """Compile SmolLM2-135M-Instruct and its drafter, generate from the bundle, and compare speed and text with plain
    decoding.

    Exits with 1 when the drafter changes the text.
    """
    from dflash_compile.compile.build import BuildOptions
    from dflash_compile.runtime import load

    from ..demo.bundle import ensure_bundle
    from ..demo.compare import compare
    from ..demo.prompts import PROMPTS

    notes: list[str] = []
    with console.progress() as progress:
        built = ensure_bundle(output, BuildOptions(precision=precision, force=True), progress, notes.append)
        progress("loading the bundle")
        with load(output) as session:
            notes += session.notes
            comparison = compare(session, PROMPTS, max_new_tokens, repeats, progress)
    for note in notes:
        console.note(f"note: {note}")
    document = {"bundle": str(output), "built": built, "notes": notes, **as_dict(comparison)}
    return Report(
        document,
        [_sample(comparison), _table(comparison), verdict(comparison)],
        ExitCode.OK if comparison.lossless else ExitCode.CHECK_FAILED,
    )


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """The whole comparison, JSON-ready."""
    prompts = [
        {
            "kind": result.prompt.kind,
            "prompt": result.prompt.text,
            "text": result.text,
            "identical": result.identical,
            **result.totals.as_dict(),
        }
        for result in comparison.results
    ]
    return {
        "lossless": comparison.lossless,
        **comparison.total.as_dict(),
        "verdict": verdict(comparison),
        "prompts": prompts,
    }


def verdict(comparison: Comparison) -> str:
    """What it comes to, in a sentence."""
    total = comparison.total
    if not comparison.lossless:
        kinds = ", ".join(result.prompt.kind for result in comparison.results if not result.identical)
        return f"NOT LOSSLESS: with the drafter the text differs from plain decoding ({kinds})."
    if total.speedup < 1:
        return (
            f"Lossless, but drafting does not help here: {total.speedup:.2f}× the speed of plain decoding, at τ"
            f" {total.tau:.2f} in whole blocks."
        )
    return (
        f"Lossless: token for token the target's own text, at {total.speedup:.2f}× the speed of plain decoding (τ"
        f" {total.tau:.2f})."
    )


def _sample(comparison: Comparison) -> str:
    first = comparison.results[0]
    return f"> {first.prompt.text}\n\n{first.text.strip()}\n"


def _table(comparison: Comparison) -> Any:
    from rich.table import Table

    table = Table("prompt", box=None)
    for name in ("tokens", "τ", "DFlash tok/s", "plain tok/s", "speed-up", "same text"):
        table.add_column(name, justify="right")
    rows = [(result.prompt.kind, result.totals, result.identical) for result in comparison.results]
    for name, it, same in [*rows, ("all", comparison.total, comparison.lossless)]:
        speeds = (f"{it.tokens_per_second:.1f}", f"{it.baseline_tokens_per_second:.1f}", f"{it.speedup:.2f}×")
        table.add_row(name, str(it.tokens), f"{it.tau:.2f}", *speeds, "yes" if same else "NO")
    return table
