"""The README says only what is there: commands, options, extras, make targets, files."""

from __future__ import annotations

import re
import tomllib

import pytest
import typer.main
from tree import ROOT

from dflash_compile.cli.register import application

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = typer.main.get_command(application()).commands


def _found(pattern: str) -> list[str]:
    found = sorted(set(re.findall(pattern, TEXT)))
    assert found, "the pattern no longer matches anything"
    return found


@pytest.mark.parametrize("name", _found(r"dflash-compile (\w+) "))
def test_commands_exist(name):
    assert name in COMMANDS


@pytest.mark.parametrize("option", _found(r"--[a-z][a-z-]+"))
def test_options_exist(option):
    known = {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    assert option in {*known, "--help"}


@pytest.mark.parametrize("extra", _found(r"(?<=\[)[a-z]+(?:,[a-z]+)*(?=\]['`;,)])"))
def test_extras_exist(extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extra.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("words", _found(r"`?make ([a-z-]+(?: types)?)"))
def test_make_targets_exist(words):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(words.split()) <= targets


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", TEXT))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
