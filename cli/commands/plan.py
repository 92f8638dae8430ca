"""`plan`: what a build would need, from configurations alone."""

from __future__ import annotations

from typing import Annotated

import typer

from dflash_compile.compile.options import BuildOptions

from ..console import Console
from ..report import Report


def command(
    console: Console,
    target: Annotated[
        str,
        typer.Argument(
            help="A directory with a config.json, such a file, a GGUF file, or the name of a packaged model."
        ),
    ],
    drafter: Annotated[
        str | None, typer.Argument(help="The same of a DFlash drafter; without one the target alone is planned.")
    ] = None,
    context: Annotated[
        str, typer.Option("--context", metavar="LIST", help="Tokens of prompt and answer together, of each column.")
    ] = "8192,32768,131072",
    block: Annotated[
        int | None, typer.Option("--block", min=2, help="Rows verified at once; the drafter's own by default.")
    ] = None,
    backend: Annotated[
        str, typer.Option("--backend", metavar="NAME", help="What the bundle would run on.")
    ] = BuildOptions.backend,
    memory: Annotated[
        str | None, typer.Option("--memory", metavar="SIZE", help="Such as 24GB or 16GiB; this machine's by default.")
    ] = None,
) -> Report:
    """Say what a bundle of TARGET and DRAFTER would hold and need in memory.

    Reads configurations only: no weights have to be there.
    """
    from dflash_compile.compile.backend_folders import backend_module
    from dflash_compile.export.outline import outline_drafter, outline_target

    from ..planning import as_document, lengths, memory_bytes, tables

    wanted, given = lengths(context), memory_bytes(memory)
    estimate = backend_module(backend, "memory_estimate", "estimate of memory").estimate
    made = estimate(outline_target(target), None if drafter is None else outline_drafter(drafter), wanted, block)
    return Report(as_document(backend, made, given), tables(made, given))
