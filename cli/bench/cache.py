"""How much memory a bundle's K/V caches take."""

from __future__ import annotations

from math import prod

import numpy as np

from dflash_compile.runtime.bundle.manifest import Manifest, ModelRecord, PortRecord
from dflash_compile.runtime.errors import BundleError

from .records import CacheRecord


def cache_record(manifest: Manifest) -> CacheRecord:
    """From the shapes of the cache ports, which are reserved for the whole context."""
    target, drafter = _bytes(manifest.target), _bytes(manifest.drafter)
    return CacheRecord(
        target_bytes=target, drafter_bytes=drafter, bytes_per_token=(target + drafter) // manifest.context
    )


def _bytes(model: ModelRecord) -> int:
    """Graphs of one model share their caches: each counts once, by name."""
    caches = {
        port.name: port
        for graph in model.graphs
        for port in graph.inputs
        if port.name in {name for name, _ in graph.caches}
    }
    return sum(_size(port) for port in caches.values())


def _size(port: PortRecord) -> int:
    sizes = [size for size in port.shape if isinstance(size, int)]
    if len(sizes) != len(port.shape):
        raise BundleError(
            f"the cache {port.name} has the shape {port.shape}",
            why="only row counts of other ports may be free",
            fix="build the bundle again",
        )
    # numpy has no bfloat16 of its own.
    return prod(sizes) * (2 if port.dtype == "bfloat16" else np.dtype(port.dtype).itemsize)
