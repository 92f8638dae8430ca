"""Engines on Core AI: one `.aimodel` for the target and one for the drafter.

Runs on a Mac and, on its CPU, on Linux.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import numpy as np

from ...backend import EngineOptions, Installed, refuse_loop
from ...bundle.manifest import ModelRecord
from ...bundle.read import Bundle
from ...engines import Engines
from ...errors import BundleError, IncompatibleError, UsageError
from ..apple.engines import Array, StaticDrafter, StaticTarget, engine_file, state_ports

INSTALL = 'pip install "dflash-compile[coreai]"'

_DISTRIBUTION = "coreai-core"
_RELEASE = 0.1
"""seconds: without them two of forty processes were aborted at their end, with them none"""
_PARTS = ("metadata.json", "main.mlirb", "main.hash")


def installed() -> Installed:
    """The version of Core AI found."""
    try:
        return Installed({_DISTRIBUTION: version(_DISTRIBUTION)})
    except PackageNotFoundError:
        return Installed({})


def open_engines(bundle: Bundle, options: EngineOptions) -> Engines:
    """Target and drafter of `bundle`. See `Backend`; Core AI chooses its own device and threads."""
    refuse_loop(options)
    if options.provider != "cpu":
        raise UsageError(
            f"provider={options.provider!r}", why="Core AI chooses the device by itself", fix="leave it out"
        )
    manifest = bundle.manifest
    with ExitStack() as undo:
        target = _Model(bundle.file(engine_file(manifest.target)), manifest.target)
        undo.callback(target.close)
        drafter = _Model(bundle.file(engine_file(manifest.drafter)), manifest.drafter)
        undo.callback(drafter.close)
        opened = Engines(StaticTarget(manifest, target), StaticDrafter(bundle, drafter))
        undo.pop_all()  # from here on the engines close them
    return opened


class _Model:
    """The entry points of one `.aimodel`.

    The library speaks asyncio only: it gets a loop in a thread of its own, so that apps may have theirs.
    """

    def __init__(self, path: Path, record: ModelRecord) -> None:
        try:
            self._assets, self._runtime = import_module("coreai.authoring"), import_module("coreai.runtime")
        except ImportError as fault:
            raise IncompatibleError("Core AI cannot be imported", why=str(fault), fix=f"run: {INSTALL}") from fault
        missing = [name for name in _PARTS if not (path / name).is_file()]
        if missing:  # the library would end the process
            raise BundleError(f"the model lacks {', '.join(missing)}", where=str(path), fix="build the bundle again")
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="coreai", daemon=True)
        self._thread.start()
        self._held = AsyncExitStack()
        self._state = {
            name: self._runtime.NDArray(np.zeros(shape, dtype)) for name, (shape, dtype) in state_ports(record).items()
        }
        names = [graph.function for graph in record.graphs if graph.function is not None]
        try:
            self._functions = self._wait(self._load(path, names))
        except Exception as fault:  # the library's exceptions share no base of their own
            self.close()
            raise BundleError(
                "Core AI cannot load an engine of the bundle",
                where=str(path),
                why=str(fault),
                fix="build the bundle again",
            ) from fault

    def call(self, function: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Functions`."""
        inputs = {name: self._runtime.NDArray(value) for name, value in feeds.items()}
        results = self._wait(self._functions[function](inputs=inputs, state=self._state))
        return {name: value.numpy() for name, value in results.items()}

    def close(self) -> None:
        """Release the model and end the thread.

        The library's own threads let go of buffers a moment later, and need Python for that: one that finds it ending
        aborts the process.
        """
        self._functions = {}
        self._state = {}
        self._wait(self._held.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        sleep(_RELEASE)

    async def _load(self, path: Path, names: list[str]) -> dict[str, Any]:
        model = await self._held.enter_async_context(self._assets.AIModelAsset.load(path).executable())
        return {name: model.load_function(name) for name in names}

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
