"""From a path to a session: the bundle first, then its text and its engines at the same time."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from .backend import EngineOptions, find_backend
from .bundle.files import Verify
from .bundle.manifest import Manifest
from .bundle.read import open_bundle
from .cache import cache_folder, cache_note
from .engines import Engines
from .errors import BundleError, UsageError
from .foreign import foreign_errors
from .requirements import check_requirements
from .session import Session

_MOST_THREADS = 1024
"""more than the cores never helps, and every one of them takes memory"""

_MOST_CYCLES = 256
"""of one launch: nobody sees a token before its end"""


def load(
    path: str | Path,
    *,
    provider: Literal["cpu", "cuda"] = "cpu",
    threads: int | None = None,
    verify: Verify = "changed",
    device_loop: int | None = None,
) -> Session:
    """The bundle in directory `path`, checked, loaded and ready to generate.

    `threads` defaults to the cores this process may use. `verify="changed"` hashes every file that was written to since
    this machine hashed it last, `"full"` hashes every file, `"size"` compares sizes only. Hashes and packed weights are
    kept for the next time in a cache folder of the user; the environment variable DFLASH_COMPILE_CACHE names another
    one, or is `off`. `device_loop=N`, an experiment for TensorRT bundles, has the GPU do up to N cycles before the host
    sees their tokens. The session's `notes` say what is unusual, such as a device or a loop that was asked for and
    cannot be had. Raises `UsageError` where there is no bundle, `IncompatibleError` where this machine cannot run it
    (with the command that helps), `BundleError` where it is damaged.
    """
    if threads is not None and (type(threads) is not int or not 1 <= threads <= _MOST_THREADS):
        raise UsageError(
            f"threads={threads!r}",
            why=f"it takes a whole number from 1 to {_MOST_THREADS}",
            fix="leave it out to use every core",
        )
    if device_loop is not None and (type(device_loop) is not int or not 2 <= device_loop <= _MOST_CYCLES):
        raise UsageError(
            f"device_loop={device_loop!r}",
            why=f"it takes a whole number of cycles from 2 to {_MOST_CYCLES}",
            fix="leave it out for one",
        )
    cache = cache_folder()
    bundle = open_bundle(path, verify=verify, cache=cache, check=check_requirements)
    backend, options = (
        find_backend(bundle.manifest.requires.backend),
        EngineOptions(provider, threads, cache, device_loop),
    )
    # A back-end's library works outside the interpreter most of the time, and the tokenizer inside it.
    faults = foreign_errors(
        BundleError,
        "the bundle cannot be loaded",
        where=str(path),
        fix="build the bundle again; where memory is short, free some, or build with a smaller --max-context",
    )
    with faults, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(backend.open_engines, bundle, options)
        try:
            from .text import open_text  # here, so that its libraries load while the engines do

            text = open_text(bundle)
        except BaseException:
            _discard(opening)
            raise
        engines = opening.result()
    kept = cache_note()
    notes = (*bundle.notes, *engines.notes, *_template_note(bundle.manifest), *([kept] if kept else []))
    return Session(bundle.manifest, engines, text, notes)


def _discard(opening: Future[Engines]) -> None:
    """Close engines that nobody will use, or swallow why they did not open: something went wrong before."""
    if opening.exception() is None:
        opening.result().close()


def _template_note(manifest: Manifest) -> tuple[str, ...]:
    trained, own = manifest.pairing.template_sha256, manifest.text.template_sha256
    if trained is None or trained == own:
        return ()
    return (
        (
            "The drafter was trained with another chat template than this bundle's: the text is right, but fewer"
            " proposals will be accepted."
        ),
    )
