"""The README says only what is there: commands, options, extras, make targets, files."""

from __future__ import annotations

import re
import tomllib

import typer.main
from tree import ROOT

from dflash_compile.cli.register import application

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(application()).commands


def _found(pattern: str) -> list[str]:
    found = sorted(set(re.findall(pattern, TEXT)))
    assert found, "the pattern no longer matches anything"
    return found


def test_commands_exist() -> None:
    assert set(_found(r"dflash-compile (\w+) ")) <= set(COMMANDS)


def test_options_exist() -> None:
    known = {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(_found(r"--[a-z][a-z-]+")) - known <= {"--help"}


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = _found(r"(?<=\[)[a-z]+(?:,[a-z]+)*(?=\]['`;,)])")
    assert {extra for extras in named for extra in extras.split(",")} <= set(project["optional-dependencies"])


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {word for words in _found(r"`?make ([a-z-]+(?: types)?)") for word in words.split()} <= targets


def test_links_lead_somewhere() -> None:
    assert [link for link in re.findall(r"\]\(([^)#:]+)\)", TEXT) if not (ROOT / link).exists()] == []
