"""`train`: a DFlash drafter for a target."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..console import Console
from ..report import Report


def command(
    console: Console,
    target: Annotated[str, typer.Argument(help="A transformers directory, a GGUF file, or the name of a packaged model.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The drafter to write; an interrupted run goes on from there.")],
    layers: Annotated[int, typer.Option("--layers", min=1, help="Layers of the drafter.")] = 3,
    block: Annotated[int, typer.Option("--block", min=2, max=64, help="Rows of a block: the anchor and the proposals.")] = 8,
    response_tokens: Annotated[int, typer.Option("--response-tokens", min=1, help="Tokens of the target's own answers to train on.")] = 400_000,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimiser steps.")] = 5000,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Train for this long instead of --steps.")] = None,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="Peak learning rate.")] = 6e-4,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts, anchors and order.")] = 0,
) -> Report:
    """Train a drafter for TARGET on the target's own answers. Takes hours on a CPU; stop and start it as you like."""
    from dflash_compile.train import TrainOptions, train

    options = TrainOptions(layers=layers, block=block, response_tokens=response_tokens, steps=steps, minutes=minutes, learning_rate=learning_rate, seed=seed)
    with console.progress() as progress:
        result: Any = train(target, output, options, progress)
    document = asdict(result) if is_dataclass(result) and not isinstance(result, type) else dict(result)
    lines = [f"{name}: {value}" for name, value in document.items()]
    return Report({"drafter": str(output), **document}, [f"wrote {output}", *lines])
