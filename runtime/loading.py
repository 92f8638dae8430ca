"""From a path to a session: bundle, text, engines, in that order, the cheap before the heavy."""

from __future__ import annotations

from pathlib import Path

from .backends import EngineOptions, find_backend
from .bundle.files import Verify
from .bundle.manifest import Manifest
from .bundle.read import open_bundle
from .errors import UsageError
from .session import Session
from .text import open_text

_MOST_THREADS = 1024
"""more than the cores never helps, and every one of them takes memory"""


def load_session(path: str | Path, *, provider: str, threads: int | None, verify: Verify) -> Session:
    """See `dflash_compile.runtime.load`."""
    if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS):
        raise UsageError(f"threads={threads!r}", why=f"it takes a whole number from 1 to {_MOST_THREADS}", fix="leave it out to use every core")
    bundle = open_bundle(path, verify=verify)
    text = open_text(bundle)
    engines = find_backend(bundle.manifest.requires.backend).open_engines(bundle, EngineOptions(provider=provider, threads=threads))
    return Session(bundle.manifest, engines, text, (*bundle.notes, *engines.notes, *_template_note(bundle.manifest)))


def _template_note(manifest: Manifest) -> tuple[str, ...]:
    trained, own = manifest.pairing.template_sha256, manifest.text.template_sha256
    if trained is None or trained == own:
        return ()
    return ("The drafter was trained with another chat template than this bundle's: the text is right, but fewer proposals will be accepted.",)
