"""A saved `.mlpackage` read back into coremltools' program objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import BuildError

from ..convert import quiet
from ..package import INDEX, MODEL, WEIGHTS


@dataclass(frozen=True)
class SavedProgram:
    """The functions of a package, by name, and the description that apps see."""

    package: Path
    functions: dict[str, Any]
    description: Any


def load(package: Path) -> SavedProgram:
    """Read `package` from disk. Raises `BuildError` where a part is missing or where coremltools cannot read it."""
    for part in (INDEX, MODEL, WEIGHTS):
        if not (package / part).is_file():
            raise BuildError(f"the package lacks {part}", where=str(package), fix="build it again")
    with quiet():
        from coremltools import proto
        from coremltools.converters.mil.frontend.milproto.load import load as load_program

        try:
            spec = proto.Model_pb2.Model()
            spec.ParseFromString((package / MODEL).read_bytes())
            program = load_program(spec, spec.specificationVersion, str((package / WEIGHTS).parent))
        except Exception as error:  # a damaged file shows in as many ways as it has fields
            raise BuildError(
                "the package cannot be read back",
                where=str(package),
                why=f"{type(error).__name__}: {error}",
                fix="build it again",
            ) from error
    return SavedProgram(package, dict(program.functions), spec.description)
