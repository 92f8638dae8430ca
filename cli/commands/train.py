"""`train`: a DFlash drafter for a target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dflash_compile.runtime.errors import UsageError

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.train.progress import TrainProgress
    from dflash_compile.train.recipe import TrainResult


def command(
    console: Console,
    target: Annotated[
        str, typer.Argument(help="A transformers directory, a GGUF file, or the name of a packaged model.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The drafter to write.")],
    work: Annotated[
        Path | None,
        typer.Option(
            "--work",
            metavar="DIR",
            help="Features, training state, log and curve; DIR.work beside the output by default.",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--restart",
            help=(
                "Go on from the training state in --work where there is one, or forget it and begin at the first step."
                " Features are kept either way."
            ),
        ),
    ] = True,
    features: Annotated[
        list[Path] | None,
        typer.Option("--features", metavar="DIR", help="More features of the same target; may be given again."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="DRAFTER",
            envvar="DFLASH_COMPILE_TRAIN_FROM",
            help=(
                "Start from its weights instead of the target's last layers; its layers, block, taps, mask id and draft"
                " vocabulary hold where none are given."
            ),
        ),
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option(
            "--engine",
            metavar="BUNDLE",
            help="Learn from the compiled target of this bundle instead of the transformers model.",
        ),
    ] = None,
    response_tokens: Annotated[
        int | None,
        typer.Option("--response-tokens", help="Tokens of the target's own answers to train on; 400000 by default."),
    ] = None,
    response_limit: Annotated[
        int | None, typer.Option("--response-limit", help="Tokens of one answer at most; 256 by default.")
    ] = None,
    text_tokens: Annotated[
        int | None,
        typer.Option("--text-tokens", help="Tokens of plain text to train on as well; 350000 by default, 0 for none."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", help="Optimiser steps in all, those before an interruption included; 5000 by default."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Train for this long in all instead of --steps.")
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", help="Layers of the drafter; 3 by default.")] = None,
    block: Annotated[
        int | None, typer.Option("--block", help="Rows of a block, the anchor and the proposals; 8 by default.")
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            "--taps", metavar="L,L,…", help="Target layers to read, counted from 0; five spread evenly by default."
        ),
    ] = None,
    mask_id: Annotated[
        int | None, typer.Option("--mask-id", help="Token id of the mask; a spare special token by default.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            "--draft-vocabulary",
            metavar="N",
            help="Tokens it can propose, the most frequent ones; by default those of --from, else all.",
        ),
    ] = None,
    sample_from_anchor: Annotated[
        bool | None,
        typer.Option(
            "--sample-from-anchor/--sample-from-masks",
            help="Let the anchor's row propose the first token, or masks alone, which is the default.",
        ),
    ] = None,
    sequences: Annotated[int | None, typer.Option("--sequences", help="Sequences of a step; 6 by default.")] = None,
    anchors: Annotated[
        int | None, typer.Option("--anchors", help="Blocks of a sequence and step; 32 by default.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="At its peak; 6e-4 by default.")
    ] = None,
    loss_vocabulary: Annotated[
        int | None,
        typer.Option("--loss-vocabulary", help="Most frequent tokens most steps are scored over; 8192 by default."),
    ] = None,
    narrow_share: Annotated[
        float | None,
        typer.Option(
            "--narrow-share",
            help="How many blocks are trained narrower than --block, for runtimes that draft so; 0 by default.",
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(
            "--gamma",
            help="Decay of the loss along a block; half the block by default. Smaller favours the first proposals.",
        ),
    ] = None,
    soft_share: Annotated[
        float | None,
        typer.Option(
            "--soft-share",
            help="Share of the loss against the target's distribution, not the token it said; 0.5 by default.",
        ),
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option("--held-out", help="One answer in this many measures τ and is never trained on; 40 by default."),
    ] = None,
    evaluate_every: Annotated[
        int | None, typer.Option("--evaluate-every", help="Steps between measurements of τ; 250 by default.")
    ] = None,
    precision: Annotated[
        Literal["auto", "bfloat16", "float32"],
        typer.Option("--precision", help="Of products; auto takes bfloat16 where the hardware has it."),
    ] = "auto",
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="CPU threads, of training and of the engine; every core by default."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a drafter that is there.")] = False,
    seed: Annotated[int | None, typer.Option("--seed", help="Of prompts, anchors and their order.")] = None,
) -> Report:
    """Train a drafter for TARGET on the target's own answers.

    Options left out take the recipe's defaults. Takes hours on a CPU; after an interruption, or to train longer, run
    the same command again: features are kept at once, the training state every five minutes and when interrupted.
    """
    from dflash_compile.export import open_drafter, open_target
    from dflash_compile.export.checkpoints.drafter_folder import refuse_existing
    from dflash_compile.train.from_drafter import options_of
    from dflash_compile.train.options import TrainOptions, default_taps
    from dflash_compile.train.recipe import train

    from ..compiled_target import open_compiled_target
    from ..torch_threads import torch_threads

    given: dict[str, Any] = {
        "response_tokens": response_tokens,
        "response_limit": response_limit,
        "text_tokens": text_tokens,
        "steps": steps,
        "minutes": minutes,
        "layers": layers,
        "block": block,
        "taps": _layers(taps),
        "mask_id": mask_id,
        "draft_vocabulary": draft_vocabulary,
        "sample_from_anchor": sample_from_anchor,
        "sequences": sequences,
        "anchors": anchors,
        "learning_rate": learning_rate,
        "loss_vocabulary": loss_vocabulary,
        "narrow_share": narrow_share,
        "gamma": gamma,
        "soft_share": soft_share,
        "held_out": held_out,
        "evaluate_every": evaluate_every,
        "precision": precision,
        "seed": seed,
    }
    refuse_existing(output, force)
    first = open_drafter(start) if start is not None else None
    known = options_of(first.spec) if first is not None else {}
    options = TrainOptions(**(known | {name: value for name, value in given.items() if value is not None}))
    work = work or output.with_name(f"{output.name}.work")
    with console.progress() as progress, torch_threads(threads):

        def report(now: TrainProgress) -> None:
            progress(now.phase, now.done, now.total, now.detail)

        progress("opening the target")
        checkpoint = open_target(target)
        compiled = (
            None
            if engine is None
            else open_compiled_target(engine, checkpoint, options.taps or default_taps(checkpoint.spec.layers), threads)
        )
        result = train(
            checkpoint, output, options, work, tuple(features or ()), force, report, first, not resume, compiled
        )
    return _report(target, result)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no list of layers", where="--taps", why=str(error), fix="give numbers, as in --taps 1,8,15"
        ) from error


def _report(target: str, result: TrainResult) -> Report:
    lines = [f"wrote {result.drafter}"]
    if not result.steps:
        lines.append("no step was left to train: ask for more --steps or --minutes, or pass --restart to begin again")
    positions = ", ".join(f"{share:.2f}" for share in result.acceptance.by_position)
    lines.append(f"held-out τ {result.acceptance.tau:.3f}; accepted by position: {positions}")
    if result.passed_over:
        lines.append(f"{result.passed_over} prompts were left out: with their answers they are too long")
    if result.curve is None:
        lines.append(
            "no curve was drawn: matplotlib is missing (pip install 'dflash-compile[train]'), or no step was evaluated"
        )
    else:
        lines.append(f"curve: {result.curve}")
    lines.append(f"next: dflash-compile build {target} {result.drafter} -o BUNDLE")
    document = {
        "drafter": str(result.drafter),
        "tau": result.acceptance.tau,
        "by_position": list(result.acceptance.by_position),
        "steps": result.steps,
        "prompts_left_out": result.passed_over,
        "curve": str(result.curve) if result.curve is not None else None,
    }
    return Report(document, lines)
