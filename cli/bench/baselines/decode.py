"""Plain decoding on the same bundle: the same engine, weights and caches, one token a cycle."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dflash_compile.runtime.session import Session

from ..variants import SessionVariant, Variant

SUMMARY = "plain decoding on the same bundle"


def open_baseline(bundle: Path, session: Session) -> AbstractContextManager[Variant]:
    """`session` without its drafter."""
    return nullcontext(SessionVariant(session, draft=False))
