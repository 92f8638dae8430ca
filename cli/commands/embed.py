"""`embed`: source code for an app that runs a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ..console import Console
from ..report import Report


def command(
    console: Console,
    bundle: Annotated[Path, typer.Argument(help="A bundle for Core ML, or for Core AI with --lang python.")],
    language: Annotated[
        Literal["swift", "python"], typer.Option("--lang", help="A Swift package, or one Python file.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The folder to write.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace what an earlier call wrote there, unless it was changed since.")
    ] = False,
) -> Report:
    """Write the source of a program that loads BUNDLE and runs the draft–verify loop.

    It takes and gives token ids. The Swift package has not been compiled or run: there was no Mac to do it on.
    """
    from dflash_compile.compile.embed.write import embed

    texts = embed(bundle, language, output, force)
    if language == "swift":
        console.note(
            "note: this Swift was neither compiled nor run by dflash-compile's authors; its loop was tested in Python"
        )
    lines = [f"wrote {output}: {', '.join(texts)}", f"next: read {output / 'README.md'}"]
    return Report({"output": str(output), "language": language, "files": list(texts)}, lines)
