"""Turns every file of `commands/` into a command with the options that all of them share."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Collection
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from dflash_compile.runtime.errors import ExitCode, IncompatibleError, UsageError
from dflash_compile.runtime.foreign import is_fault

from . import commands
from .config import apply_file
from .console import Console
from .failure import as_error
from .report import Report

PROGRAM = "dflash-compile"
ENVIRONMENT = "DFLASH_COMPILE"

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE.toml",
        is_eager=True,
        callback=apply_file,
        help="Read options from the table of this command's name.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on standard error but failures.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.")]
SHARED: dict[str, Any] = {"config": ConfigFile, "json": Json, "verbose": Verbose, "quiet": Quiet, "debug": Debug}


@functools.cache
def application() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name=PROGRAM,
        help="Compile a language model and its DFlash drafter into one bundle, and run it.",
        pretty_exceptions_enable=False,
        epilog="Options come from flags, then DFLASH_COMPILE_<COMMAND>_<OPTION>, then the -c file, then the default. "
        "Exit codes: 0 ok, 1 check failed, 2 usage, 3 incompatible, 4 failed, 130 interrupted.",
    )
    app.callback()(_root)
    for module in pkgutil.iter_modules(commands.__path__):
        _add(app, module.name)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {version(PROGRAM)}")
        raise typer.Exit


def _root(
    show_version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes the options that belong to no command."""


def _add(app: typer.Typer, name: str) -> None:
    try:
        command = importlib.import_module(f"{commands.__name__}.{name}").command
    except Exception as error:
        app.command(
            name,
            help=f"(unavailable: {error})",
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )(_unavailable(name, error))
    else:
        prefix = f"{ENVIRONMENT}_{name.upper()}"
        app.command(
            name,
            epilog=f"Every option may also come from the environment: --some-option as {prefix}_SOME_OPTION.",
            context_settings={"auto_envvar_prefix": prefix},
        )(_wrapped(name, command))


def _unavailable(name: str, error: Exception) -> Callable[[], None]:
    """A broken command still lists itself, and says why when it is called."""

    def command() -> None:
        raise IncompatibleError(
            f"the command `{name}` cannot be loaded",
            why=f"{type(error).__name__}: {error}",
            fix="reinstall dflash-compile",
        ) from error

    return command


def _wrapped(name: str, command: Callable[..., Report]) -> Callable[..., None]:
    """`command(console, …)` as a function of its own options and the shared ones."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        shared = {key: options.pop(key) for key in SHARED}
        console = Console(json=shared["json"], verbose=shared["verbose"], quiet=shared["quiet"], debug=shared["debug"])
        raise typer.Exit(_run(name, command, console, options, flags))

    signature = inspect.signature(command, eval_str=True)
    _, *own = signature.parameters.values()
    flags = frozenset(f"--{key.replace('_', '-')}" for key in (*signature.parameters, *SHARED, "help"))
    extra = [
        inspect.Parameter(
            key, inspect.Parameter.KEYWORD_ONLY, default=None if key == "config" else False, annotation=kind
        )
        for key, kind in SHARED.items()
    ]
    for parameter in (*own, *extra):
        for flag in parameter.annotation.__metadata__:
            flag.show_envvar = False  # the end of the page says it once
    run.__signature__ = signature.replace(parameters=[*own, *extra], return_annotation=None)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *extra)}
    return run


def _check_taken(options: dict[str, Any], flags: Collection[str]) -> None:
    """Raises `UsageError` where an option without its text took the next flag for it: `--prompt --json`."""
    for key, value in options.items():
        taken = [entry for entry in (value if isinstance(value, list | tuple) else [value]) if str(entry) in flags]
        if taken:
            raise UsageError(
                f"--{key.replace('_', '-')} has no value: {taken[0]} follows it",
                fix=f"give its value before {taken[0]}; a prompt can come through standard input",
            )


def _run(
    name: str, command: Callable[..., Report], console: Console, options: dict[str, Any], flags: Collection[str]
) -> int:
    try:
        _check_taken(options, flags)
        if console.verbose and console.quiet:
            raise UsageError("--verbose and --quiet exclude each other", fix="give one of them")
        with console.without_chatter():
            report = command(console, **options)
        console.report(name, report)
    except BrokenPipeError:
        console.discard_output()  # `… | head`
        return ExitCode.OK
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not is_fault(error):
            raise
        return console.failure(as_error(error), error)
    return int(report.code)
