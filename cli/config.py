"""Options from a TOML file: one table per command, keys spelled like the flags."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import typer

from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.regular import read_regular

_BYTES = 16 << 20
NOT_IN_FILE = {"config", "help"}


def apply_file(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the options that come after.

    Runs before any other option of the command is read. Flags and environment variables still win.
    Raises `UsageError` for a file that is missing or no TOML, and for unknown tables and keys.
    """
    if path is None:
        return None
    tables = read_tables(path)
    root = context.find_root().command
    _check_known(tables, set(getattr(root, "commands", {})), "table", path)
    name = context.command.name or ""
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"`{name}` is not a table", where=str(path), fix=f"write [{name}] and the options below it")
    spellings = {
        spelling: parameter.name
        for parameter in context.command.params
        for spelling in _spellings(parameter)
        if parameter.name not in NOT_IN_FILE
    }
    _check_known(table, spellings, f"key in [{name}]", path)
    switches = {parameter.name for parameter in context.command.params if getattr(parameter, "is_flag", False)}
    for key, value in table.items():
        if isinstance(value, bool) and spellings[key] not in switches:
            raise UsageError(
                f"`{key}` cannot be {str(value).lower()}", where=str(path), fix="give a value: it is no switch"
            )
    several = {parameter.name for parameter in context.command.params if getattr(parameter, "multiple", False)}
    context.default_map = {
        spellings[key]: _value(key, value, spellings[key] in several, path) for key, value in table.items()
    }
    return path


def _value(key: str, value: Any, several: bool, path: Path) -> Any:
    """`value` as an option takes it: one entry may stand for a list of one."""
    entries = value if several and isinstance(value, list) else [value]
    if not all(isinstance(entry, str | int | float) for entry in entries):
        wanted = "a string, a number, true or false" + (", or a list of them" if several else "")
        raise UsageError(f"`{key}` cannot be {value!r}", where=str(path), fix=f"give {wanted}")
    return entries if several else value


def read_tables(path: Path) -> dict[str, Any]:
    """The whole file. Raises `UsageError` when it cannot be read as TOML."""
    try:
        return tomllib.loads(read_regular(path, _BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise UsageError("no such config file", where=str(path), fix="check the path given to -c") from error
    except (ValueError, RecursionError) as error:  # TOML's own and UTF-8's errors are of the first
        raise UsageError(
            "the config file is not TOML", where=str(path), why=str(error), fix="correct the line named"
        ) from error


def _spellings(parameter: Any) -> list[str]:
    """`--max-context` as `max-context` and `max_context`; an argument by its name; no short flags."""
    long = [flag.removeprefix("--") for flag in parameter.opts if flag.startswith("--") or not flag.startswith("-")]
    return [*long, *(word.replace("-", "_") for word in long), *(word.lower() for word in long)]


def _check_known(given: Mapping[str, Any], known: Collection[str], kind: str, path: Path) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            fix = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(sorted(known))}"
            raise UsageError(f"unknown {kind}: `{name}`", where=str(path), fix=fix)
