"""Caches that the host keeps: an engine reads them as an input and gives the K and V of its own rows, of which only
what was accepted is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...bundle.manifest import ModelRecord
from ...errors import BundleError
from .engines import Array, Functions

_CACHE, _ROWS, _POSITION = "cache", "rows", "position"


class HostCache(Functions):
    """The entry points of one model with its cache put in before every call.

    Which rows of a call were accepted shows in the next one: it starts behind them. So rows wait until then, and those
    that it would write again are dropped: no rejected row ever reaches the cache.
    """

    def __init__(self, record: ModelRecord, functions: Functions) -> None:
        """Raises `BundleError` where the functions of `record` do not share one cache."""
        ports = host_ports(record)
        if _CACHE not in ports:
            raise BundleError(
                f"the engines of {record.name} have neither a state nor a cache to be handed in",
                fix="build the bundle again",
            )
        shape, dtype = ports[_CACHE]
        self.cache: Array = np.zeros(shape, dtype)
        self._functions = functions
        self._waiting: tuple[int, Array] | None = None

    def call(self, function: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Functions`."""
        position = int(feeds[_POSITION][0])
        self._commit(position)
        results: dict[str, Any] = dict(self._functions.call(function, {**feeds, _CACHE: self.cache}))
        rows = results.pop(_ROWS, None)
        if rows is not None:
            self._waiting = position, np.array(rows)
        return results

    def close(self) -> None:
        """Release the engine and the cache."""
        self._functions.close()
        self.cache, self._waiting = self.cache[:0], None

    def _commit(self, position: int) -> None:
        """Keep the rows of the last call that lie before `position`."""
        if self._waiting is None:
            return
        start, rows = self._waiting
        count = min(position - start, rows.shape[2])
        if count > 0:
            self.cache[:, :, start : start + count] = rows[:, :, :count]
        self._waiting = None


def host_ports(model: ModelRecord) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of the cache that the host hands in, by name; empty where there is none.

    Raises `BundleError` where graphs differ in it.
    """
    found = {
        (port.name, tuple(int(size) for size in port.shape), port.dtype)
        for graph in model.graphs
        for port in graph.inputs
        if port.name == _CACHE
    }
    if len(found) > 1:
        raise BundleError(f"the engines of {model.name} have caches of several shapes", fix="build the bundle again")
    return {name: (shape, dtype) for name, shape, dtype in found}
