"""README, CONTRIBUTING and docs/ say only what is there: commands, options, extras, make targets, files, headings."""

from __future__ import annotations

import re
import tomllib

import pytest
import typer.main
from tree import ROOT

from dflash_compile.cli.register import application

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
}
COMMANDS = typer.main.get_command(application()).commands
MOST_LINES = {"README.md": 120, "docs/benchmarks.md": 300}


def _found(pattern: str, least: int) -> list[tuple[str, str]]:
    """(page, match), each once; a pattern that no longer matches `least` times anywhere tests nothing."""
    found = sorted({(page, match) for page, text in PAGES.items() for match in re.findall(pattern, text)})
    assert len(found) >= least, "the pattern no longer matches"
    return found


def _slug(heading: str) -> str:
    """The anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _options_of_scripts() -> set[str]:
    scripts = (ROOT / "benchmarks").rglob("*.py")
    return {option for file in scripts for option in re.findall(r'"(--[a-z][a-z-]+)"', file.read_text("utf-8"))}


@pytest.mark.parametrize(("page", "most"), MOST_LINES.items())
def test_pages_are_short(page, most):
    assert len(PAGES[page].splitlines()) <= most


@pytest.mark.parametrize(("page", "name"), _found(r"dflash-compile (\w+) ", 20))
def test_commands_exist(page, name):
    assert name in COMMANDS


@pytest.mark.parametrize(("page", "option"), _found(r"(?<![\w-])--[a-z][a-z-]+", 60))
def test_options_exist(page, option):
    known = {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    assert option in {*known, "--help"} | _options_of_scripts()


@pytest.mark.parametrize(("page", "extra"), _found(r"(?<=\[)[a-z]+(?:,[a-z]+)*(?=\]['\"`;,)])", 8))
def test_extras_exist(page, extra):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extra.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize(("page", "words"), _found(r"(?:`|^)make ([a-z-]+(?: types)?)", 4))
def test_make_targets_exist(page, words):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(words.split()) <= targets


@pytest.mark.parametrize(("page", "script"), _found(r"python (benchmarks/\S+?\.py)", 8))
def test_scripts_exist(page, script):
    assert (ROOT / script).is_file()


@pytest.mark.parametrize(("page", "link"), _found(r"\]\(([^)\s:]+)\)", 40))
def test_links_lead_somewhere(page, link):
    path, _, anchor = link.partition("#")
    found = (ROOT / page).parent / path if path else ROOT / page
    assert found.exists()
    if anchor:
        headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {_slug(heading) for heading in headings}


def test_every_page_is_linked_from_the_readme():
    assert [page for page in PAGES if page != "README.md" and f"({page})" not in PAGES["README.md"]] == []


def test_the_picture_shows_figures_that_were_measured():
    """Bars and the text for those who do not see them: each is a speed of the table that the README points to."""
    picture = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    table = PAGES["docs/benchmarks.md"].partition("against other engines")[2].partition("\n## ")[0]
    measured = set(re.findall(r"^\| [^|]+ \| (\d+) \|", table, re.MULTILINE))
    drawn = re.findall(r">(\d+)</text>", picture)
    told = re.findall(r"(?<= )\d{3}(?=[,;\]])", re.search(r"!\[(.+?)\]\(docs/speed", PAGES["README.md"])[1] + "]")
    assert len(drawn) == 10
    assert set(drawn) <= measured
    assert sorted(told) == sorted(drawn)


def test_bars_are_as_long_as_their_figures():
    picture = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    bars = re.findall(r'<rect x="300" y="\d+" width="(\d+)".*?/>\s*<text[^>]*>(\d+)</text>', picture)
    assert len(bars) == 10
    assert all(abs(int(width) / int(speed) - 1.62) < 0.01 for width, speed in bars)


@pytest.mark.parametrize(
    ("page", "path"),
    [found for found in _found(r"`((?:[a-z_]+/)+[a-z_]*(?:\.\w+)?)`", 50) if found[0] != "CONTRIBUTING.md"],
)
def test_files_and_folders_that_are_named_exist(page, path):
    shorthand = ("graphs/", "apple/", "embed/", "policy/", "conformance/", "packaging/", "features/", "target/")
    assert (ROOT / path).exists() or path in shorthand
