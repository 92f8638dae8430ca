"""Decoding with look-ups on the same bundle, without the drafter: what came next where the text read like this before
is verified as if drafted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from dflash_compile.runtime.session import Session

from ..variants import SessionVariant, Variant

SUMMARY = "decoding with look-ups, without the drafter, on the same bundle"


def open_baseline(bundle: Path, session: Session) -> AbstractContextManager[Variant]:
    """`session` without its drafter, looking up."""
    return nullcontext(SessionVariant(session, draft=False, lookup=True))
