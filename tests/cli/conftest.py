"""Running the command line in this process, and commands made up for a test."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dflash_compile.cli import commands, register
from dflash_compile.cli.main import main

# The tiny bundle and the fake engines: `tiny` and `fakes`, by name.
if (RUNTIME := str(Path(__file__).parents[1] / "runtime")) not in sys.path:
    sys.path.insert(0, RUNTIME)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict:
        """The one JSON document on standard output; anything else there fails the test."""
        return json.loads(self.out)


@pytest.fixture
def cli(capfd):
    """`cli("doctor", "--json")` → its outcome."""

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        code = main(arguments)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def add_command(tmp_path_factory, monkeypatch):
    """`add_command("name", source)` puts a file into the folder of commands for this test."""
    folder = tmp_path_factory.mktemp("commands")
    added: list[str] = []
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(folder)])
    register.application.cache_clear()

    def add(name: str, source: str) -> None:
        (folder / f"{name}.py").write_text(source)
        added.append(f"{commands.__name__}.{name}")

    yield add
    register.application.cache_clear()
    for name in added:
        sys.modules.pop(name, None)


HEADER = """
from typing import Annotated
import typer
from dflash_compile.cli.report import Report
from dflash_compile.runtime import errors
"""


@pytest.fixture
def failing(add_command):
    """`failing("raise …")` adds the command `fail` that does so."""
    return lambda statement: add_command("fail", f"{HEADER}\ndef command(console) -> Report:\n    {statement}\n")


@pytest.fixture
def echo(add_command):
    """The command `echo`, which reports the options it was given."""
    add_command(
        "echo",
        HEADER
        + """
def command(
    console,
    word: Annotated[str, typer.Option("--word")] = "default",
    max_size: Annotated[int, typer.Option("--max-size", min=1)] = 1,
    flag: Annotated[bool, typer.Option("--flag/--no-flag")] = True,
    many: Annotated[list[str] | None, typer.Option("--many")] = None,
) -> Report:
    import logging, warnings
    print("a library prints this")
    logging.getLogger("library").warning("a library logs this")
    warnings.warn("a library warns of this")
    return Report({"word": word, "max_size": max_size, "flag": flag, "many": many}, [f"word {word}"])
""",
    )
