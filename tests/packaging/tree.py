"""The source tree as the packaging tests see it."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("artifacts", "cli", "compile", "export", "runtime", "train")
NAMESPACE = "dflash_compile"


@cache
def modules() -> list[Path]:
    """Every Python file of the packages, relative to the root."""
    return sorted(file.relative_to(ROOT) for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


@cache
def tracked() -> list[Path]:
    """Every file under version control, relative to the root; everything but build outputs where there is no git."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(line) for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def dotted(file: Path) -> str:
    """`runtime/bundle/read.py` as `dflash_compile.runtime.bundle.read`."""
    parts = file.with_suffix("").parts
    return ".".join((NAMESPACE, *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Absolute names of everything `file` imports, at any depth and for type checkers too, relative imports resolved as
    the installed package resolves them.

    `from a import b` gives `a.b`: b may be a module.
    """
    package = dotted(file).split(".") if file.name == "__init__.py" else dotted(file).split(".")[:-1]
    names: list[str] = []
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(filter(None, (base, node.module)))
            names += (f"{start}.{name.name}" for name in node.names)
    return tuple(names)
