"""`build`: target and drafter in, bundle out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dflash_compile.compile.options import BuildOptions

from ..backend_flags import back_ends, engine_options, with_backend_flags
from ..console import Console
from ..report import Report

_BACKENDS = ", ".join(f"{name} ({kind.TITLE})" for name, kind in back_ends().items())
_PRECISIONS = "; ".join(f"{name}: {', '.join(kind.PRECISIONS)}" for name, kind in back_ends().items())


@with_backend_flags
def command(
    console: Console,
    target: Annotated[
        str, typer.Argument(help="A transformers directory, a GGUF file, or the name of a packaged model.")
    ],
    drafter: Annotated[str, typer.Argument(help="A directory with the DFlash drafter trained for it.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The bundle to write.")],
    block: Annotated[
        int | None, typer.Option("--block", min=2, help="Rows verified at once; the drafter's own by default.")
    ] = None,
    max_context: Annotated[
        int | None,
        typer.Option(
            "--max-context",
            min=1,
            help="Tokens of prompt and answer together; by default what both models allow, at most 2048.",
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="NAME", help=f"Of the weights; the first by default. {_PRECISIONS}."),
    ] = None,
    drafter_precision: Annotated[
        str | None,
        typer.Option(
            "--drafter-precision", metavar="NAME", help="Of the drafter's weights; as --precision by default."
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help=f"What the bundle runs on: {_BACKENDS}.")
    ] = BuildOptions.backend,
    drafter_thinking: Annotated[
        Literal["on", "off"] | None,
        typer.Option(
            "--drafter-thinking",
            help=(
                "Whether the drafter was trained on prompts that asked for thinking, where its checkpoint does not say."
            ),
        ),
    ] = None,
    target_from: Annotated[
        Path | None,
        typer.Option(
            "--target-from",
            metavar="BUNDLE",
            help="Take the compiled target from this bundle and compile the drafter only.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
    **flags: Any,
) -> Report:
    """Build a bundle from TARGET and DRAFTER. Needs no GPU, nor the whole model in memory."""
    from dflash_compile.compile.build import build

    options = BuildOptions(
        backend=backend,
        precision=precision or "",
        drafter_precision=drafter_precision,
        context=max_context,
        block=block,
        drafter_thinking=None if drafter_thinking is None else drafter_thinking == "on",
        force=force,
        engine=engine_options(flags),
    )
    notes: list[str] = []
    with console.progress() as progress:
        bundle = build(target, drafter, output, options, progress, notes.append, target_from)
    for note in notes:
        console.note(f"note: {note}")
    return Report(
        {"bundle": str(bundle), "notes": notes},
        [f"built {bundle}", f'try: dflash-compile run {bundle} --prompt "Why is the sky blue?"'],
    )
