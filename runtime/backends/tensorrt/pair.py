"""A pair's engines over one set of buffers: who reads and writes what, allocated once, never moved.

    anchor ─▶ embed ─▶ draft ─▶ head ─▶ block ─▶ embed ─▶ body ─▶ head ─▶ accepted, bonus, next_position ─▶ commit
                                                           └─▶ taps ─▶ inject

The target's table and head are engines of their own, which the drafter uses too. Everything is on one stream, so that a
buffer is free to be written as soon as what reads it has been asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...bundle.manifest import GraphRecord, Manifest
from ...errors import BundleError, UsageError
from .device import Device
from .plan import Runner
from .steps import Chain, Step

_INT = 4


class Loaded(Runner, Protocol):
    """A runner that knows what memory it needs."""

    @property
    def ports(self) -> Mapping[str, object]:
        """Its inputs and outputs by name."""
        ...

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
"""opens a program of an engine; the flag asks for a context that captures itself"""
Call = tuple[str, int]
"""role and rows"""
Program = tuple[str, int | None]
"""file and profile"""
Wiring = tuple[Call, Mapping[str, str]]
"""a run of an engine, and the buffers of those ports that do not go by their own names"""

# What nobody reads; every port has memory of its own.
_UNREAD = {port: f"unread/{port}" for port in ("block", "tokens", "proposals", "accepted", "bonus", "next_position")}
_ROWS = "draft/embedded"
"""Embedded rows that a draft starts from: the anchor's, which each draft writes, then the masks', written once."""


class Pair:
    """Engines and buffers of one bundle for one architecture."""

    def __init__(self, manifest: Manifest, arch: str, device: Device, load: Load, file: Callable[[str], Path]) -> None:
        """`file` finds those of the bundle. Raises `BundleError` for an engine that is not there."""
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
        wired = self._wired()
        programs = self._programs(wired, wired)
        self.plans = {key: load(record, False) for key, record in programs.items()}
        cycle: list[Call] = [("draft", self.block), *(("verify", rows) for rows in self.widths), ("inject", self.block)]
        captured = self._programs(wired, cycle)
        self.captures = all(self.plans[key].capturable for key in captured)
        if not self.captures:
            for key, record in captured.items():
                del self.plans[key]  # first, because two contexts of one profile exclude each other
                self.plans[key] = load(record, True)
        self._host = device.pinned(max(self.chunk, self.block + 1))
        self._bits: NDArray[np.int32] | None = None
        self.buffers = {name: device.allocate(size) for name, size in self._sizes(wired).items()}
        for plan in self.plans.values():
            plan.give_scratch(self.buffers["scratch"], max(plan.scratch for plan in self.plans.values()))
        self.chains = {call: Chain([self._step(*wiring) for wiring in wirings]) for call, wirings in wired.items()}
        weights = {name: found for record in programs.values() for name, found in record.weights.items()}
        for name, found in weights.items():
            self._load(name, file(found))
        verify = self.record(("verify", self.block))
        self.rows = next(_length(verify, name) for name, _ in verify.caches)
        self.closed = False
        device.write(self.buffers["block"], [manifest.pairing.mask_id] * self.block)
        for chain in self.chains.values():  # kernels are compiled now, and all has run before it is captured
            chain.enqueue()
        device.mark()()

    def _load(self, name: str, file: Path) -> None:
        """The weights of the input `name`, for all engines that take them."""
        sizes = {plan.bytes(name) for plan in self.plans.values() if name in plan.ports}
        if sizes != {file.stat().st_size}:
            raise BundleError(
                f"{file.name} has another size than the engines take",
                where=str(file),
                why=f"{file.stat().st_size} bytes, not {' or '.join(map(str, sorted(sizes)))}",
                fix="build the bundle again",
            )
        self.device.load(file, self.buffers[name])

    def _wired(self) -> Mapping[Call, Sequence[Wiring]]:
        """What each call runs, in order. That of masks comes first, while the block holds nothing else."""
        narrow, wide = self.widths[0], ("draft", self.block)
        prefill: list[Wiring] = [(("embed", self.chunk), {}), (("prefill", self.chunk), {})]
        # The head has no width of one row: the second one of this is empty.
        prefill.append((("head", narrow), {**_UNREAD, "hidden": "last", "tokens": "next_token"}))
        draft: list[Wiring] = [(wide, {"embedded": _ROWS})]
        calls: dict[Call, Sequence[Wiring]] = {}
        ports = _ports(self.record(wide))
        if "embedded" in ports:
            calls["masks", self.block] = [(("embed", self.block), {"tokens": "block", "embedded": _ROWS})]
            draft.insert(0, (("embed", 1), {"tokens": "anchor", "embedded": _ROWS}))
        if "hidden" in ports:
            draft.append((("head", self.block), {**_UNREAD, "proposals": "block"}))
        calls["prefill", self.chunk] = prefill
        calls[wide] = draft
        for rows in self.widths:
            verify: Call = ("verify", rows)
            read = {"proposals": _UNREAD["proposals"]}
            calls[verify] = [(("embed", rows), {"tokens": "block"}), (verify, {}), (("head", rows), read)]
        for rows in (self.block, self.chunk):
            calls["inject", rows] = [(("inject", rows), {})]
        return calls

    def _programs(self, wired: Mapping[Call, Sequence[Wiring]], calls: Iterable[Call]) -> Mapping[Program, GraphRecord]:
        """What `calls` run, each once."""
        records = [self.record(call) for made in calls for call, _ in wired[made]]
        return {_program(record): record for record in records}

    def write(self, name: str, values: Sequence[int]) -> None:
        """Integers into a buffer."""
        self._open()
        self.device.write(self.buffers[name], values)

    def run(self, role: str, rows: int) -> None:
        """One call, on what the buffers hold by then."""
        self._open()
        self.chains[role, rows].enqueue()

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

    def bytes(self, call: Call, port: str) -> int:
        """Size of what a program of its own, that of `call`, reads or writes at `port`."""
        return self.plans[_program(self.record(call))].bytes(port)

    def _sizes(self, wired: Mapping[Call, Sequence[Wiring]]) -> Mapping[str, int]:
        """Bytes of every buffer. Those that several engines share are as large as the largest needs."""
        sizes = {"scratch": max(plan.scratch for plan in self.plans.values()), "report": (self.block + 1) * _INT}
        for wirings in wired.values():
            for call, names in wirings:
                for port, name in self._named(call, names).items():
                    sizes[name] = max(sizes.get(name, 0), self.bytes(call, port))
        return sizes

    def _step(self, call: Call, names: Mapping[str, str]) -> Step:
        key = _program(self.record(call))
        addresses = {port: self.buffers[name] for port, name in self._named(call, names).items()}
        return Step(lambda: self.plans[key], addresses)

    def _named(self, call: Call, names: Mapping[str, str]) -> Mapping[str, str]:
        """The buffer of each port: by name, but the two models' caches apart, and a cache's output where its input
        is.
        """
        record = self.record(call)
        owner = "drafter" if record in self.manifest.drafter.graphs else "target"
        cached = {name: f"{owner}/{name}" for name, _ in record.caches}
        cached |= {out: cached[name] for name, out in record.caches}
        return {port: cached.get(port) or names.get(port, port) for port in _ports(record)}


def _program(record: GraphRecord) -> Program:
    return record.file, record.profile


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
