"""A pair's engines over one set of buffers: who reads and writes what, allocated once, bound once, never moved.

    anchor, position ─▶ draft ─▶ block ─▶ verify ─▶ accepted, bonus, next_position ─▶ commit ─▶ anchor, position, report
                                              └────▶ taps ─▶ inject

Everything is on one stream, so that a buffer is free to be written as soon as what reads it has been asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...bundle.manifest import GraphRecord, Manifest
from ...errors import BundleError, UsageError
from .device import Device
from .plan import Runner

_INT = 4


class Loaded(Runner, Protocol):
    """A runner that knows what memory it needs."""

    @property
    def scratch(self) -> int:
        """Bytes of memory it needs for what it computes in between."""
        ...

    def bytes(self, port: str) -> int:
        """Size of a port's memory."""
        ...

    def give_scratch(self, address: int, size: int) -> None:
        """Memory for what it computes in between."""
        ...


Load = Callable[[GraphRecord, bool], Loaded]
"""opens an engine; the flag asks for a context that captures itself"""


class Pair:
    """Engines and buffers of one bundle for one architecture."""

    def __init__(self, manifest: Manifest, arch: str, device: Device, load: Load) -> None:
        """Raises `BundleError` for an engine that is not there."""
        self.manifest, self.device, self.block = manifest, device, manifest.pairing.block
        self.records = {
            (graph.role, graph.rows): graph
            for model in (manifest.target, manifest.drafter)
            for graph in model.graphs
            if graph.arch == arch
        }
        self.chunk = _widest(self.records)
        verifies = {rows for role, rows in self.records if role == "verify" and rows is not None}
        self.widths = sorted({self.block, *verifies})
        """of verify, narrowest first"""
        captured = [("draft", self.block), *(("verify", rows) for rows in self.widths), ("inject", self.block)]
        roles = (("prefill", self.chunk), *captured, ("inject", self.chunk))
        self.plans = {role: load(self.record(role), False) for role in dict.fromkeys(roles)}
        self.captures = all(self.plans[role].capturable for role in captured)
        if not self.captures:
            for role in captured:  # the context that is there must go first: two of one profile exclude each other
                del self.plans[role]
                self.plans[role] = load(self.record(role), True)
        self._host = device.pinned(max(self.chunk, self.block + 1))
        self._bits: NDArray[np.int32] | None = None
        self.buffers = {name: device.allocate(size) for name, size in self._sizes().items()}
        self._bind()
        verify = self.record(("verify", self.block))
        self.rows = next(_length(verify, name) for name, _ in verify.caches)
        self.closed = False
        for plan in self.plans.values():  # kernels are compiled now, and every context has run before it is captured
            plan.enqueue()
        device.mark()()

    def write(self, name: str, values: Sequence[int]) -> None:
        """Integers into a buffer."""
        self._open()
        self.device.write(self.buffers[name], values)

    def run(self, role: str, rows: int) -> None:
        """One run of an engine, on what the buffers hold by then."""
        self._open()
        self.plans[role, rows].enqueue()

    def read(self, name: str, count: int) -> list[int]:
        """Integers of a buffer, once everything asked for is done."""
        self._open()
        self.device.read_into(self._host[:count], self.buffers[name])
        self.device.mark()()
        return [int(value) for value in self._host[:count]]

    def bits(self, name: str, size: int) -> NDArray[np.int32]:
        """The first `size` bytes of a buffer, whatever they mean, once everything asked for is done.

        Valid until the next call.
        """
        self._open()
        if self._bits is None or self._bits.nbytes < size:
            self._bits = self.device.pinned(size // _INT)
        found = self._bits[: size // _INT]
        self.device.read_into(found, self.buffers[name])
        self.device.mark()()
        return found

    def close(self) -> None:
        """Free everything."""
        if not self.closed:
            self.closed = True
            self.device.close()

    def _open(self) -> None:
        if self.closed:
            raise UsageError(
                "this session is closed", why="its engines and their memory are gone", fix="load the bundle again"
            )

    def record(self, role: tuple[str, int]) -> GraphRecord:
        if role not in self.records:
            raise BundleError(
                f"the bundle has no {role[0]} engine of {role[1]} rows",
                why="every architecture needs one",
                fix="build the bundle again",
            )
        return self.records[role]

    def _sizes(self) -> Mapping[str, int]:
        """Bytes of every buffer. Those that several engines share are as large as the largest needs."""
        sizes = {"scratch": max(plan.scratch for plan in self.plans.values()), "report": (self.block + 1) * _INT}
        for role, plan in self.plans.items():
            for port in _ports(self.record(role)):
                name = self._buffer(role[0], port)
                sizes[name] = max(sizes.get(name, 0), plan.bytes(port))
        return sizes

    def _bind(self) -> None:
        scratch = self._sizes()["scratch"]
        for role, plan in self.plans.items():
            plan.give_scratch(self.buffers["scratch"], scratch)
            for port in _ports(self.record(role)):
                plan.bind(port, self.buffers[self._buffer(role[0], port)])

    def _buffer(self, role: str, port: str) -> str:
        """The buffer behind a port: by name, but the two models' caches apart, and a cache's output where its input
        is.
        """
        record = next(record for (name, _), record in self.records.items() if name == role)
        taken = {out: name for name, out in record.caches}.get(port, port)
        if taken in dict(record.caches):
            return f"{'target' if role in ('prefill', 'verify', 'decode') else 'drafter'}/{taken}"
        return port


def _ports(record: GraphRecord) -> list[str]:
    return [port.name for port in (*record.inputs, *record.outputs)]


def _widest(records: Mapping[tuple[str, int | None], GraphRecord]) -> int:
    widths = [rows for role, rows in records if role == "prefill" and rows is not None]
    if not widths:
        raise BundleError(
            "the bundle has no prefill engine", why="every architecture needs one", fix="build the bundle again"
        )
    return max(widths)


def _length(record: GraphRecord, cache: str) -> int:
    shape = next(port.shape for port in record.inputs if port.name == cache)
    if len(shape) != 4 or not isinstance(shape[2], int):
        raise BundleError(
            f"the cache {cache} has the shape {shape}",
            why="it is [1, heads, rows, width]",
            fix="build the bundle again",
        )
    return shape[2]
