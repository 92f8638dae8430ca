"""Whether this machine has the library a bundle was built for, asked before any file is hashed."""

from __future__ import annotations

import re

from .backend import Backend, Installed, find_backend
from .bundle.manifest import RequirementRecord
from .errors import IncompatibleError


def check_requirements(requires: RequirementRecord) -> tuple[str, ...]:
    """Notes for the user about the library found.

    Raises `IncompatibleError` with the command to run where the back-end is unknown, its library missing, or older than
    `requires.minimum`.
    """
    backend = find_backend(requires.backend)
    found = backend.installed()
    if not found.versions:
        raise IncompatibleError(
            f"the bundle was built for {requires.package} {requires.built_with}; you have none",
            why=f"its engines need {requires.package} {requires.minimum} or later",
            fix=f"run: {backend.INSTALL}",
        )
    _check_minimum(requires, backend, found)
    _check_maximum(requires, found)
    return found.notes


def _check_minimum(requires: RequirementRecord, backend: Backend, found: Installed) -> None:
    name, version = min(found.versions.items(), key=lambda item: release(item[1]))
    if release(version) < release(requires.minimum):
        raise IncompatibleError(
            f"the bundle was built for {requires.package} {requires.built_with}; you have {name} {version}",
            why=f"its engines need {requires.minimum} or later",
            fix=f"run: pip install --upgrade {name}",
        )


def _check_maximum(requires: RequirementRecord, found: Installed) -> None:
    if requires.maximum is None:
        return
    name, version = max(found.versions.items(), key=lambda item: release(item[1]))
    if release(version) > release(requires.maximum):
        raise IncompatibleError(
            f"the bundle was built for {requires.package} {requires.built_with}; you have {name} {version}",
            why="its engines run with no later version",
            fix=f"run: pip install {requires.package}=={requires.maximum}, or build the bundle again",
        )


def release(version: str) -> tuple[int, int, int]:
    """Major, minor and patch of a version: numbers only, `1.32.0rc1` counts as `1.32.0`."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch
