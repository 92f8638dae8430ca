"""CUDA sources compiled for cards that are not there."""

from __future__ import annotations

from pathlib import Path

from dflash_compile.runtime.errors import IncompatibleError


def write_cubin(source: str, arch: str, file: Path) -> None:
    """`source` compiled for `arch`. Needs NVRTC, not a GPU. Raises `IncompatibleError` where that is not installed."""
    try:
        from cuda.core import Program, ProgramOptions

        options = ProgramOptions(arch=arch.replace("sm", "sm_"))
        code = Program(source, "c++", options).compile("cubin").code
    except Exception as fault:  # a missing library is an error of each package's own
        raise IncompatibleError(
            "the kernels that end a cycle cannot be compiled",
            where=arch,
            why=str(fault),
            fix="run: pip install 'dflash-compile[rtx]'",
        ) from fault
    file.write_bytes(bytes(code))
