"""The flags of `build` that one back-end has: a help panel for each back-end, made of the options in its folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from dflash_compile.compile.backend_folders import backend_module, backend_names
from dflash_compile.compile.backend_options import BackendOptions, Option
from dflash_compile.compile.calibration_text import TOKENS, Calibration, from_file
from dflash_compile.runtime.errors import UsageError

from .report import Report

_PROMPTS = "prompts"


def back_ends() -> dict[str, type[BackendOptions]]:
    """The options of each back-end, by its name. Imports no library."""
    return {name: backend_module(name, "options", "options").Options for name in backend_names("options")}


def with_backend_flags(command: Callable[..., Report]) -> Callable[..., Report]:
    """`command` with a keyword for every option of every back-end instead of its last, `**flags`."""
    signature = inspect.signature(command, eval_str=True)
    *own, _ = signature.parameters.values()
    command.__signature__ = signature.replace(parameters=[*own, *_parameters()])  # type: ignore[attr-defined]
    return command


def engine_options(flags: Mapping[str, Any]) -> dict[str, object]:
    """What `flags` were given, as `BuildOptions.engine` takes it.

    Raises `UsageError` for a list that is none, and for a calibration text that cannot be read.
    """
    known = {name: option for kind in back_ends().values() for name, option in kind.options().items()}
    return {
        name: _value(known[name], given) for name, given in flags.items() if given is not None and given is not False
    }


def _parameters() -> Iterator[inspect.Parameter]:
    for backend, kind in back_ends().items():
        for option in kind.options().values():
            plain = option.type if option.type in (bool, int) else str
            flag = typer.Option(
                option.spelling,
                metavar=option.flag.metavar,
                help=option.flag.help,
                rich_help_panel=f"Only with --backend {backend} ({kind.TITLE})",
            )
            yield inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=False if plain is bool else None,
                annotation=Annotated[plain if plain is bool else plain | None, flag],
            )


def _value(option: Option, given: Any) -> object:
    """`given` on a command line, as the back-end takes it."""
    if option.type is Calibration:
        return _calibration(given)
    if get_origin(option.type) is not tuple:
        return given
    words = [word.strip().lower() for word in given.split(",") if word.strip()]
    if get_args(option.type)[0] is str:
        return tuple(words)
    if wrong := [word for word in words if not word.isdecimal()]:
        raise UsageError(
            f"{wrong[0]!r} is no number", where=option.spelling, fix="give numbers with commas between them: 4,8"
        )
    return tuple(map(int, words))


def _calibration(given: str) -> Calibration:
    """The texts that are called so, or that a file holds."""
    if given != _PROMPTS:
        return from_file(Path(given))
    from dflash_compile.train.prompt_tokens import prompt_tokens

    return Calibration(_PROMPTS, lambda target: prompt_tokens(target, TOKENS))
