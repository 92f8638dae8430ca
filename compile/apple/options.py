"""Build options that no engine of static width has."""

from __future__ import annotations

from collections.abc import Collection

from dflash_compile.runtime.errors import UsageError

from ..options import BuildOptions


def refuse_others(options: BuildOptions, precisions: Collection[str]) -> None:
    """Raises `UsageError` for a precision that is none of `precisions`, and for options that belong to other
    back-ends.
    """
    for option, name in (("--precision", options.precision), ("--drafter-precision", options.drafter_precision)):
        if name is not None and name not in precisions:
            raise UsageError(f"unknown precision {name!r}", where=option, fix=f"choose one of {', '.join(precisions)}")
    if options.portable:
        raise UsageError(
            "the portable form is a form of ONNX graphs",
            where="--portable",
            fix="leave it out, or build with --backend onnxruntime",
        )
    for option, value in (
        ("--arch", options.arch),
        ("--flavour", options.flavour),
        ("--refine", options.refine),
        ("--widths", options.widths),
    ):
        if value:
            raise UsageError(
                f"{option} for {options.backend}", where=option, why="its graphs have no such form", fix="leave it out"
            )
