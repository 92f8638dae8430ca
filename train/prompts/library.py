"""Prompts about text and code of Python's standard library, and the texts themselves."""

from __future__ import annotations

import inspect
import pkgutil
import random
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from .data import read

_DATA = read("library")
DOCUMENT_TEMPLATES: list[str] = _DATA["document"]
CODE_TEMPLATES: list[str] = _DATA["code"]


def document_prompt(rng: random.Random) -> str:
    """A user message about the beginning of a document."""
    return rng.choice(DOCUMENT_TEMPLATES).format(text=rng.choice(library_documents())[: rng.choice([400, 800, 1200])])


def code_prompt(rng: random.Random) -> str:
    """A user message about a function."""
    return rng.choice(CODE_TEMPLATES).replace("{text}", rng.choice(library_functions()))


@cache
def library_files() -> list[Path]:
    """Every source file of the standard library over 2000 bytes, its tests left out, sorted by path."""
    root = Path(inspect.__file__).parent
    skipped = {"test", "tests", "site-packages", "idle_test", "__pycache__", "encodings", "pydoc_data"}
    files = (f for f in root.rglob("*.py") if not skipped & set(f.relative_to(root).parts))
    return sorted(f for f in files if f.stat().st_size > 2000)


@cache
def _module_files() -> list[Path]:
    """Source files of the standard library's plain modules, sorted by name."""
    names = sorted(
        m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names and not m.name.startswith("_")
    )
    specs = (find_spec(name) for name in names if name not in {"this", "antigravity"})
    files = [Path(s.origin) for s in specs if s and s.origin and s.origin.endswith(".py")]
    return [f for f in files if 2_000 < f.stat().st_size < 300_000]


@cache
def library_functions() -> list[str]:
    """Top-level functions of the standard library, as source text of 200 to 1500 characters."""
    functions = []
    for file in _module_files():
        lines = file.read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
        starts = [i for i, line in enumerate(lines) if line.startswith("def ")]
        blocks = ("".join(inspect.getblock(lines[i:])).rstrip() for i in starts)
        functions += [block for block in blocks if 200 <= len(block) <= 1500]
    return functions


@cache
def library_documents() -> list[str]:
    """Prose from the standard library: help topics and long module docstrings, 300 to 4000 characters."""
    from pydoc_data.topics import topics  # 700 kB of text: only when asked for

    texts = [" ".join(part.split(" ")) for text in topics.values() for part in text.split("\n\n\n")]
    return sorted(text.strip()[:4000] for text in texts if len(text) >= 300)
