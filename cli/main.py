"""Entry of the program: every way a run can end becomes an exit code and, where something failed, one clear message."""

from __future__ import annotations

import difflib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from dflash_compile.runtime.errors import ExitCode, UsageError
from dflash_compile.runtime.foreign import is_fault

from . import interrupts
from .console import Console
from .failure import as_error
from .register import PROGRAM, application


def main(arguments: Sequence[str]) -> int:
    """Run the command line `arguments` (without the program's name) and return the exit code."""
    # Parsing itself may fail, and until it succeeds these words are all that is known of the options.
    console = Console(json="--json" in arguments, debug="--debug" in arguments)
    try:
        code = application()(list(arguments) or ["--help"], prog_name=PROGRAM, standalone_mode=False)
    except typer.TyperException as error:
        return console.failure(UsageError(error.format_message().rstrip("."), fix=_help(arguments)))
    except SystemExit:  # typer's own answer to a reader that leaves early: `--help | head`
        return ExitCode.OK
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not is_fault(error):
            raise
        return console.failure(as_error(error), error)
    return int(code or 0) if arguments else ExitCode.USAGE


def _help(arguments: Sequence[str]) -> str:
    names = [command.name for command in application().registered_commands if command.name]
    words = [word for word in arguments if not word.startswith("-")]
    command = next((word for word in words if word in names), "")
    close = difflib.get_close_matches(words[0], names, n=1) if words and not command else []
    return f"did you mean `{close[0]}`?" if close else " ".join(filter(None, (PROGRAM, command, "--help")))


def entry() -> None:
    """The console script."""
    _open_streams()
    interrupts.watch("SIGINT", "SIGTERM", "SIGHUP")
    sys.exit(main(sys.argv[1:]))


def _open_streams() -> None:
    """Standard streams that are there, whatever the caller closed, and that write every text, whatever the locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  (as long as the program)
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
