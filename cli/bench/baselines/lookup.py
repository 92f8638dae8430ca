"""Decoding with look-ups on the same bundle, without the drafter: what came next where the text read like this before
is verified as if drafted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dflash_compile.runtime.session import Session

from ..sides import SessionSide, Side

SUMMARY = "decoding with look-ups, without the drafter, on the same bundle"


def open_baseline(bundle: Path, session: Session) -> AbstractContextManager[Side]:
    """`session` without its drafter, looking up."""
    return nullcontext(SessionSide(session, draft=False, lookup=True))
