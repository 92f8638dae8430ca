"""The held-out prompt suites of `artifacts/prompts`: a file of one prompt a line, or a folder of one prompt a file."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "artifacts" / "prompts"
RUN = 12
"""words: two texts that share so many in a row were not written apart"""


def suite_names() -> list[str]:
    """Every suite there is, sorted."""
    return sorted(path.stem for path in FOLDER.iterdir())


def suite(name: str) -> list[str]:
    """The prompts of suite `name`, in order; those of a folder exactly as their files stand, last newline included."""
    if (FOLDER / name).is_dir():
        return [file.read_text(encoding="utf-8") for file in sorted((FOLDER / name).iterdir())]
    return (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def word_runs(text: str, length: int = RUN) -> list[tuple[str, ...]]:
    """Every `length` words in a row, in lower case and without punctuation, in order and with repeats."""
    words = _words(text)
    return list(zip(*(words[start:] for start in range(length)), strict=False))


def sentences(text: str) -> set[tuple[str, ...]]:
    """The words of every sentence and every line that has at least four."""
    parts = (_words(part) for part in re.split(r"(?<=[.?!:;])\s+|\n+", text))
    return {part for part in parts if len(part) >= 4}


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\w+", text.lower()))
