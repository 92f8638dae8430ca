"""Prompt suites: those that ship with the tool, and files of one's own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_compile.artifacts import ROOT
from dflash_compile.runtime.errors import UsageError

SUITES = ROOT / "prompts"
"""`NAME.txt` holds a prompt a line; the folder `NAME` holds a prompt a file, for prompts of many lines"""
ALL = "all"


@dataclass(frozen=True)
class Suite:
    """User messages of one kind."""

    name: str
    prompts: tuple[str, ...]


def suite_names() -> list[str]:
    """Every suite that ships, sorted."""
    return sorted({path.stem for path in SUITES.iterdir() if path.suffix == ".txt" or path.is_dir()})


def open_suites(words: Sequence[str], most: int | None = None) -> list[Suite]:
    """The suites that `words` (names, `all`, files, folders) mean, each once, with at most `most` prompts.

    Raises `UsageError` for a suite that is not there, holds no prompt, or is not UTF-8 text.
    """
    names = [name for word in words for name in (suite_names() if word == ALL else [word])]
    return [_open(name, most) for name in dict.fromkeys(names)]


def _open(word: str, most: int | None) -> Suite:
    path = _locate(word)
    try:
        if path.is_dir():
            texts = [file.read_text(encoding="utf-8") for file in sorted(path.glob("*.txt"))]
        else:
            texts = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UsageError(
            "a suite is not Unicode text", where=str(path), why=str(error), fix="write it in UTF-8"
        ) from error
    prompts = [text for text in texts if text.strip()][:most]
    if not prompts:
        raise UsageError(
            "a suite without a prompt",
            where=str(path),
            fix="write one prompt a line into a file, or one prompt a .txt file into a folder",
        )
    return Suite(path.stem, tuple(prompts))


def _locate(word: str) -> Path:
    if word in suite_names():
        folder = SUITES / word
        return folder if folder.is_dir() else SUITES / f"{word}.txt"
    path = Path(word)
    if path.is_dir() or path.is_file():
        return path
    close = difflib.get_close_matches(word, [*suite_names(), ALL], n=1)
    known = (
        f"known: {', '.join(suite_names())}, {ALL}; or give a text file with a prompt a line, or a folder of text files"
    )
    raise UsageError(
        f"unknown suite: `{word}`",
        why="it is neither a suite of this tool nor a file",
        fix=f"did you mean `{close[0]}`?" if close else known,
    )
