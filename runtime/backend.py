"""What a back-end offers, and finding one by name: the module `backend` of a folder of `backends/`.

No back-end is named here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, cast

from .errors import IncompatibleError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from .bundle.read import Bundle
    from .engines import Engines


@dataclass(frozen=True)
class Installed:
    """Which distributions of a back-end's library this machine has."""

    versions: Mapping[str, str]
    """version by distribution name; empty where there is none"""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineOptions:
    """How the user wants engines to run."""

    provider: str = "cpu"
    """device family: cpu or cuda"""
    threads: int | None = None
    """None: one for every core this process may use"""
    cache: Path | None = None
    """a folder where forms of engines that only this machine can use may be kept; None: keep nothing"""
    device_loop: int | None = None
    """most cycles that the device does before the host looks at them; None: one"""


class Backend(Protocol):
    """The module `backend` of a back-end's folder. Importing it must not import its library."""

    INSTALL: str
    """the command that installs its library"""

    def installed(self) -> Installed:
        """What is installed, found without importing it."""
        ...

    def open_engines(self, bundle: Bundle, options: EngineOptions) -> Engines:
        """Target and drafter of a checked bundle, loaded and with their memory reserved.

        Raises `IncompatibleError` where the library cannot run them and `BundleError` where an engine is not what the
        manifest says.
        """
        ...


def refuse_loop(options: EngineOptions) -> None:
    """Raises `UsageError` where a loop on the device is asked for: for back-ends whose cycles the host drives."""
    if options.device_loop is not None:
        raise UsageError(
            f"device_loop={options.device_loop!r}",
            why="only a bundle for TensorRT can repeat cycles without the host",
            fix="leave it out, or build one",
        )


_FOLDER = f"{__package__}.backends"


def _is_there(name: str) -> bool:
    return find_spec(f"{_FOLDER}.{name}") is not None and find_spec(f"{_FOLDER}.{name}.backend") is not None


def find_backend(name: str) -> Backend:
    """The back-end in the folder `name`. Raises `IncompatibleError` for one this version does not have."""
    # The name comes out of a manifest: it must not reach anything but a public file of this folder.
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not _is_there(name):
        raise IncompatibleError(
            f"the bundle was built for the back-end {name!r}, which this dflash-compile does not have",
            fix="run `pip install --upgrade dflash-compile`, or build the bundle for another back-end",
        )
    return cast("Backend", import_module(f"{_FOLDER}.{name}.backend"))
