"""What an engine answers to made-up inputs, to compare two forms of it bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...bundle.manifest import GraphRecord, PortRecord
from .graph import Buffer, Graph

_ROWS = {"rows": 2, "picked": 2, "proposals": 1}
"""as few as every cache has room for"""
_SEED = 0
_KEY = (0,)


def trial(library: Any, graph: Graph, record: GraphRecord) -> list[bytes]:
    """Every output of one call at position 0, and the rows it wrote to every cache. Equal engines on the CPU give equal
    bytes.

    Inputs of integers are zero: a token, a row and a position that every graph has. Others are random, the same each
    time. Raises what ONNX Runtime raises, and `KeyError` for a free size that has no known name.
    """
    random = np.random.default_rng(_SEED)
    caches = graph.cache_buffers(library, "cpu")
    shared = {name for pair in record.caches for name in pair}
    inputs, outputs = ([port for port in ports if port.name not in shared] for ports in (record.inputs, record.outputs))
    views = {
        port.name: (Buffer(library, "cpu", _shape(port), port.dtype), _shape(port)) for port in (*inputs, *outputs)
    }
    for port in inputs:
        buffer, shape = views[port.name]
        if np.dtype(buffer.dtype).kind == "f":
            buffer.read(shape)[...] = random.standard_normal(shape, np.float32)
    graph.bind(
        _KEY,
        {port.name: views[port.name] for port in inputs},
        {port.name: views[port.name] for port in outputs},
        caches,
    )
    graph.run(_KEY)
    written = [buffer.read(buffer.shape)[:, :, : _ROWS["rows"]] for buffer in caches.values()]
    return [views[port.name][0].read(_shape(port)).tobytes() for port in outputs] + [rows.tobytes() for rows in written]


def _shape(port: PortRecord) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else _ROWS[size] for size in port.shape)
