"""`train`: a DFlash drafter for a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.train.recipe import TrainProgress


def command(
    console: Console,
    target: Annotated[str, typer.Argument(help="A transformers directory, a GGUF file, or the name of a packaged model.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The drafter to write.")],
    work: Annotated[Path | None, typer.Option("--work", metavar="DIR", help="Features and training state, to go on from; DIR.work beside the output.")] = None,
    features: Annotated[list[Path] | None, typer.Option("--features", metavar="DIR", help="More features of the same target; may be given again.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="DRAFTER", help="Start from its weights instead of the target's last layers; its layers, block, taps and mask id hold."),
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", help="Layers of the drafter.")] = None,
    block: Annotated[int | None, typer.Option("--block", help="Rows of a block: the anchor and the proposals.")] = None,
    mask_id: Annotated[int | None, typer.Option("--mask-id", help="Token id of the mask; a spare special token by default.")] = None,
    response_tokens: Annotated[int | None, typer.Option("--response-tokens", help="Tokens of the target's own answers to train on.")] = None,
    text_tokens: Annotated[int | None, typer.Option("--text-tokens", help="Tokens of plain text to train on as well; 0 for none.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimiser steps.")] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Train for this long instead of --steps.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="At its peak.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a drafter that is there.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Of prompts, anchors and their order.")] = None,
) -> Report:
    """Train a drafter for TARGET on the target's own answers.

    Options left out take the recipe's defaults. Takes hours on a CPU; run the same command again to go on after an interruption.
    """
    from dflash_compile.export import open_drafter, open_target
    from dflash_compile.train.from_drafter import options_of
    from dflash_compile.train.options import TrainOptions
    from dflash_compile.train.recipe import train

    given: dict[str, Any] = {
        "layers": layers,
        "block": block,
        "mask_id": mask_id,
        "response_tokens": response_tokens,
        "text_tokens": text_tokens,
        "steps": steps,
        "minutes": minutes,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    first = open_drafter(start) if start is not None else None
    known = options_of(first.spec) if first is not None else {}
    options = TrainOptions(**(known | {name: value for name, value in given.items() if value is not None}))
    tau: float | None = None
    with console.progress() as progress:

        def report(now: TrainProgress) -> None:
            nonlocal tau
            if now.event is not None and now.event.acceptance is not None:
                tau = now.event.acceptance.tau
            progress(now.phase, now.done, now.total, now.detail)

        progress("opening the target")
        drafter = train(open_target(target), output, options, work or output.with_name(f"{output.name}.work"), tuple(features or ()), force, report, first)
    lines = [f"wrote {drafter}", *([f"held-out τ {tau:.3f}"] if tau is not None else []), f"next: dflash-compile build {target} {drafter} -o BUNDLE"]
    return Report({"drafter": str(drafter), "tau": tau}, lines)
