"""README, CONTRIBUTING and docs/ say only what is there: commands, options, extras, make targets, files, headings."""

from __future__ import annotations

import re
import tomllib

import typer
import typer.main
from tree import ROOT

from dflash_compile.cli.register import application

README, RESULTS, CONTRIBUTING = "README.md", "docs/benchmarks.md", "CONTRIBUTING.md"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / README, ROOT / CONTRIBUTING, *sorted((ROOT / "docs").glob("*.md")))
}
MOST_LINES = {README: 120, RESULTS: 300}
SHORT = {"graphs/", "apple/", "embed/", "policy/", "conformance/", "packaging/", "features/"}
"""folders that are named within others"""
COMMANDS = typer.main.get_group(application()).commands


def _found(pattern: str, least: int) -> set[tuple[str, str]]:
    """(page, match); a pattern that no longer matches `least` times tests nothing."""
    found = {(page, match) for page, text in PAGES.items() for match in re.findall(pattern, text, re.MULTILINE)}
    assert len(found) >= least, "the pattern no longer matches"
    return found


def _slug(heading: str) -> str:
    """The anchor of a heading, as code hosts make it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _anchors(page: str) -> set[str]:
    return {_slug(heading) for heading in re.findall(r"^#+ (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)}


def test_pages_are_short() -> None:
    lines = {page: len(PAGES[page].splitlines()) for page in MOST_LINES}
    assert {page: count for page, count in lines.items() if count > MOST_LINES[page]} == {}


def test_commands_exist() -> None:
    assert [found for found in _found(r"dflash-compile (\w+) ", 20) if found[1] not in COMMANDS] == []


def test_options_exist() -> None:
    known = {
        flag
        for command in COMMANDS.values()
        for parameter in command.params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    scripts = (file.read_text("utf-8") for file in (ROOT / "benchmarks").rglob("*.py"))
    known |= {"--help", "--indent", *(option for text in scripts for option in re.findall(r'"(--[a-z][a-z-]+)"', text))}
    assert [found for found in _found(r"(?<![\w-])--[a-z][a-z-]+", 60) if found[1] not in known] == []


def test_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = _found(r"(?<=\[)[a-z]+(?:,[a-z]+)*(?=\]['\"`;,)])", 8)
    extras = {(page, extra) for page, names in named for extra in names.split(",")}
    assert [found for found in extras if found[1] not in project["optional-dependencies"]] == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = _found(r"(?:`|^)make ([a-z-]+(?: types)?)", 4)
    assert [found for found in named if not set(found[1].split()) <= targets] == []


def test_scripts_exist() -> None:
    named = _found(r"python (benchmarks/\S+?\.py)", 8)
    assert [found for found in named if not (ROOT / found[1]).is_file()] == []


def test_files_and_folders_that_are_named_exist() -> None:
    named = {found for found in _found(r"`((?:[a-z_]+/)+[a-z_]*(?:\.\w+)?)`", 50) if found[0] != CONTRIBUTING}
    assert [found for found in named if not (ROOT / found[1]).exists() and found[1] not in SHORT] == []


def test_links_lead_somewhere() -> None:
    wrong = []
    for page, link in _found(r"\]\(([^)\s:]+)\)", 40):
        path, _, anchor = link.partition("#")
        found = ((ROOT / page).parent / path if path else ROOT / page).resolve()
        if not found.exists() or (anchor and anchor not in _anchors(found.relative_to(ROOT).as_posix())):
            wrong.append((page, link))
    assert wrong == []


def test_every_page_is_linked_from_the_readme() -> None:
    assert [page for page in PAGES if page != README and f"({page})" not in PAGES[README]] == []


def test_the_picture_shows_figures_that_were_measured() -> None:
    """Bars, and the words for those who do not see them, are speeds of the table that the README points to."""
    picture = (ROOT / "docs" / "speed.svg").read_text(encoding="utf-8")
    table = PAGES[RESULTS].partition("against other engines")[2].partition("\n## ")[0]
    measured = set(re.findall(r"^\| [^|]+ \| (\d+) \|", table, re.MULTILINE))
    bars = re.findall(r'<rect x="300" y="\d+" width="(\d+)".*?/>\s*<text[^>]*>(\d+)</text>', picture)
    assert len(bars) == 10
    assert {speed for _, speed in bars} <= measured
    assert all(abs(int(width) / int(speed) - 1.62) < 0.01 for width, speed in bars)
    words = PAGES[README].partition("![")[2].partition("](docs/speed.svg)")[0]
    assert sorted(re.findall(r"(?<= )\d{3}(?=[,;]|$)", words)) == sorted(speed for _, speed in bars)
