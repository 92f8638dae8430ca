"""`adapt`: a drafter, fine-tuned on what a compiled target really says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.train.progress import TrainProgress
    from dflash_compile.train.recipe import TrainResult


def command(
    console: Console,
    bundle: Annotated[Path, typer.Argument(help="The bundle whose target engine is learned from.")],
    target: Annotated[str, typer.Argument(help="The target that BUNDLE was built from.")],
    drafter: Annotated[str, typer.Argument(help="The drafter to begin with; it is not changed.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The adapted drafter to write.")],
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Features, training state, log and curve; DIR.work beside the output by default.",
        ),
    ] = None,
    response_tokens: Annotated[
        int, typer.Option("--response-tokens", min=1, help="Tokens of the engine's own answers to learn from.")
    ] = 40_000,
    response_limit: Annotated[int, typer.Option("--response-limit", min=1, help="Tokens of one answer at most.")] = 256,
    text_tokens: Annotated[
        int, typer.Option("--text-tokens", min=0, help="Tokens of plain text to learn from as well.")
    ] = 0,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimiser steps in all, those before an interruption included.")
    ] = 300,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Train for this long in all instead of --steps.")
    ] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="At its peak.")] = 1e-4,
    held_out: Annotated[
        int, typer.Option("--held-out", min=2, help="One answer in this many measures τ and is never trained on.")
    ] = 10,
    evaluate_every: Annotated[
        int, typer.Option("--evaluate-every", min=1, help="Steps between measurements of τ.")
    ] = 50,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads, of training and of the engine; every core by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a drafter that is there.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts, anchors and their order.")] = 0,
) -> Report:
    """Fine-tune DRAFTER on the answers and taps of BUNDLE's compiled, quantised target.

    Quantisation moves the layers that a drafter reads, and with them what the target says: a drafter trained on the
    original loses acceptance. Build again with the adapted drafter and the same --precision. Interrupted, the same
    command goes on.
    """
    from dflash_compile.export import open_drafter, open_target
    from dflash_compile.export.checkpoints.drafter_folder import refuse_existing
    from dflash_compile.train.from_drafter import options_of
    from dflash_compile.train.options import TrainOptions
    from dflash_compile.train.recipe import train

    from ..compiled_target import open_compiled_target
    from ..torch_threads import torch_threads

    refuse_existing(output, force)
    first = open_drafter(drafter)
    asked: dict[str, Any] = {
        "response_tokens": response_tokens,
        "response_limit": response_limit,
        "text_tokens": text_tokens,
        "steps": steps,
        "minutes": minutes,
        "learning_rate": learning_rate,
        "held_out": held_out,
        "evaluate_every": evaluate_every,
        "seed": seed,
    }
    options = TrainOptions(**options_of(first.spec), **asked)
    with console.progress() as progress, torch_threads(threads):

        def report(now: TrainProgress) -> None:
            progress(now.phase, now.done, now.total, now.detail)

        progress("opening the models")
        checkpoint = open_target(target)
        engine = open_compiled_target(bundle, checkpoint, first.spec.taps, threads)
        result = train(
            checkpoint,
            output,
            options,
            work or output.with_name(f"{output.name}.work"),
            (),
            force,
            report,
            first,
            engine=engine,
        )
    return _report(bundle, target, result)


def _report(bundle: Path, target: str, result: TrainResult) -> Report:
    assert result.before is not None
    before, after = result.before, result.acceptance
    lines = [
        f"wrote {result.drafter}",
        f"τ on held-out answers of {bundle}: {before.tau:.3f} before, {after.tau:.3f} after",
        f"next: dflash-compile build {target} {result.drafter} -o BUNDLE, at the precision of {bundle}",
    ]
    document = {
        "drafter": str(result.drafter),
        "tau_before": before.tau,
        "tau": after.tau,
        "by_position_before": list(before.by_position),
        "by_position": list(after.by_position),
        "steps": result.steps,
    }
    return Report(document, lines)
