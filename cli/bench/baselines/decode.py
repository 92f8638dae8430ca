"""Plain decoding on the same bundle: the same engine, weights and caches, one token a cycle."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dflash_compile.runtime.session import Session

from ..sides import SessionSide, Side

SUMMARY = "plain decoding on the same bundle"


def open_baseline(bundle: Path, session: Session) -> AbstractContextManager[Side]:
    """`session` without its drafter."""
    return nullcontext(SessionSide(session, draft=False))
