"""Engines whose weights are packed for this machine's kernels already, kept in the cache and mapped into memory from
there.

ONNX Runtime packs weights anew whenever it loads an engine, into memory of its own. A packed form on disk is shared by
all processes that run it, and the system may drop its pages. It is made by the first load, is used only where it
answers as the engine itself does, and is never needed: whatever goes wrong with it, the engine of the bundle is there.

An entry bears the hashes of the bytes it was made from, which are counted again while it is made. A bundle whose files
nobody hashed (`verify="size"`) could claim another's: it neither makes entries nor uses them.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import Any

import msgspec

from ...bundle.files import sha256
from ...bundle.manifest import GraphRecord
from ...bundle.read import Bundle
from ...bundle.stamps import Stamp, stamp
from ...cache import ENGINES, prepare
from ...errors import BundleError
from .graph import Graph
from .library import open_engine, open_session, providers, session_options
from .packed_entry import Entry, forget_unused
from .processor import processor
from .trial import trial

_FORM = 2
"""of entries: another number makes all of them anew"""
_SHARE = 10
"""an entry may take one part in so many of the space that is free"""
_SWELL = 3
"""an entry holds the weights as they were, the same packed, and the padding of both"""


class PackedEngines:
    """The packed forms of one bundle's engines."""

    def __init__(self, library: Any, bundle: Bundle, cache: Path | None, threads: int | None) -> None:
        self._library, self._bundle, self._threads = library, bundle, threads
        self._cache = cache if bundle.hashed else None
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Why there is none for some engine, in sentences for the user."""
        return tuple(self._notes)

    def session(self, record: GraphRecord) -> Any | None:
        """A session of the engine of `record` in its packed form; None where the bundle's own has to do.

        Raises `BundleError` where a file of it is another than a moment ago.
        """
        if self._cache is None:
            return None
        entry = Entry(self._cache / ENGINES / self._key(record))
        try:
            if not entry.whole():
                self._make(entry, record, self._cache)
            return self._load(entry) if entry.usable else None
        except BundleError:
            entry.remove()
            raise
        except OSError as fault:
            self._note(f"{fault.strerror or fault}, at {self._cache}")
        except Exception as fault:  # ONNX Runtime's exceptions share no base of their own
            # A full disk, a damaged entry, or one from another processor that looks like this: the next load makes it
            # anew.
            entry.remove()
            self._note(shorten(str(fault), 200))
        return None

    def _load(self, entry: Entry) -> Any:
        options = session_options(self._library, self._threads)
        # It was optimised before it was packed: another round could only change it.
        options.graph_optimization_level = self._library.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = open_session(self._library, entry.engine, options, providers(self._library, "cpu"))
        entry.used()
        return session

    def _make(self, entry: Entry, record: GraphRecord, cache: Path) -> None:
        prepare(cache)
        needed = _SWELL * sum(self._bundle.manifest.sizes.get(name, 0) for name in self._files(record))
        if needed > shutil.disk_usage(cache).free // _SHARE:
            self._note(f"they would take up to {needed >> 20} MiB, more than a tenth of what is free at {cache}")
            return
        forget_unused(cache / ENGINES)
        with entry.staged() as staging:
            before = self._hashed(record)
            self._save(record, staging.engine)
            expected = self._answers(self._plain(record), record)
            if self._answers(self._load(staging), record) != expected:
                staging.refuse()
            if self._stamps(record) != before:
                raise _changed(self._bundle.file(record.file))

    def _hashed(self, record: GraphRecord) -> list[Stamp]:
        """Stamps of the engine's files, whose bytes are what the manifest says. Raises `BundleError` where they are
        not.
        """
        stamps = self._stamps(record)
        for name in self._files(record):
            if sha256(self._bundle.file(name)) != self._bundle.manifest.files[name]:
                raise _changed(self._bundle.file(name))
        return stamps

    def _stamps(self, record: GraphRecord) -> list[Stamp]:
        return [stamp(self._bundle.file(name)) for name in self._files(record)]

    def _plain(self, record: GraphRecord) -> Any:
        """A session of the bundle's own engine, as it runs where nothing is kept."""
        return open_engine(
            self._library,
            self._bundle.file(record.file),
            session_options(self._library, self._threads),
            providers(self._library, "cpu"),
        )

    def _save(self, record: GraphRecord, place: Path) -> None:
        """Write the packed form of the bundle's own engine to `place`."""
        options = session_options(self._library, self._threads)
        options.optimized_model_filepath = str(place)
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", f"{place.name}.data"
        )
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
        options.add_session_config_entry("session.save_external_prepacked_constant_initializers", "1")
        open_session(self._library, self._bundle.file(record.file), options, providers(self._library, "cpu"))

    def _answers(self, session: Any, record: GraphRecord) -> list[bytes]:
        return trial(self._library, Graph(session, self._bundle.file(record.file), record), record)

    def _key(self, record: GraphRecord) -> str:
        """Of everything that decides what an entry holds: no two bundles, versions or kinds of processor ever share
        one.
        """
        hashes = [f"{name} {self._bundle.manifest.files[name]}" for name in sorted(self._files(record))]
        parts = [
            str(_FORM),
            self._library.__version__,
            self._library.get_build_info(),
            *processor(),
            msgspec.json.encode(record).decode(),
            *hashes,
        ]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]

    def _files(self, record: GraphRecord) -> list[str]:
        """The engine and whatever lies beside it: its weights are among them."""
        folder = PurePosixPath(record.file).parent
        return [name for name in self._bundle.manifest.files if PurePosixPath(name).is_relative_to(folder)]

    def _note(self, why: str) -> None:
        self._notes[f"Packed weights are not kept on this machine ({why}): loading takes longer, and more memory."] = (
            None
        )


def _changed(file: Path) -> BundleError:
    return BundleError(
        "a file of the bundle was changed while it was loaded",
        where=str(file),
        why="its bytes are no longer those that were hashed",
        fix="load the bundle again when nothing writes to it",
    )
