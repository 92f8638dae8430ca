"""`quantize`: a drafter's int8 form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console import Console
from ..report import Report


def command(
    console: Console,
    drafter: Annotated[str, typer.Argument(help="A directory with a DFlash drafter.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The int8 drafter to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a drafter that is there.")] = False,
) -> Report:
    """Write DRAFTER with int8 weights, about half its size.

    Projections of the draft layers become int8; fc and the norms stay as they are. The result is a drafter like any
    other.
    """
    from dflash_compile.compile.quantize_drafter import quantize_drafter

    with console.progress() as progress:
        written = quantize_drafter(drafter, output, force, progress)
    size = sum(file.stat().st_size for file in written.glob("*.safetensors"))
    lines = [
        f"wrote {written}, {size / 2**20:.1f} MiB of weights",
        f"next: dflash-compile build TARGET {written} -o BUNDLE",
    ]
    return Report({"drafter": str(written), "bytes": size}, lines)
