"""What a command found out, for programs and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_compile.runtime.errors import ExitCode

VERSION = 1
"""of every JSON document the command line prints; raised when a key changes its meaning or goes away"""


@dataclass(frozen=True)
class Report:
    """`document` is printed with --json, `text` (anything rich can print) otherwise."""

    document: Mapping[str, object]
    text: Sequence[Any] = field(default=())
    code: ExitCode = ExitCode.OK


def schema(kind: str) -> str:
    """The name and version a document of `kind` (a command's name, or "error") goes by."""
    return f"dflash-compile.{kind}/{VERSION}"
