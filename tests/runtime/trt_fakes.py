"""A GPU in plain Python: memory by address, one stream that runs nothing before somebody waits, graphs that remember
what was recorded.

Engines on it compute with `fakes.choice`, so that a stale row, a wrong address or a wrong order changes the answer.
Whatever touches memory that was never allocated, or was freed, fails at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fakes import VOCAB, choice

from dflash_compile.runtime.bundle.manifest import GraphRecord, PortRecord

BLOCK, CHUNK, ROWS, CONTEXT = 4, 8, 128, 100
MASK = 6
LIFT = 100
"""from tokens to what stands for them between two engines"""
TABLE = [31, 41, 59]
ARCH = "sm89"
CACHES = {"target": ["k_cache_0", "v_cache_0"], "drafter": ["k_cache_0", "v_cache_0"]}


class FakeDevice:
    stream = 7

    def __init__(self) -> None:
        self.memory: dict[int, np.ndarray] = {}
        self.queue: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.recording: list[Callable[[], None]] | None = None
        self.graphs: list[list[str]] = []
        self.loaded: list[str] = []
        self.done = 0
        self.closed = False
        self.conditions: dict[int, int] = {}
        """by handle, whether the body of a loop runs again"""

    def allocate(self, size: int) -> int:
        assert not self.closed
        assert self.recording is None, "memory allocated while a graph is recorded"
        address = 1000 * (len(self.memory) + 1)
        self.memory[address] = np.zeros(-(-size // 4), np.int32)
        return address

    def load(self, file: Path, address: int) -> None:
        assert self.recording is None, "a file read while a graph is recorded"
        self.at(address)[:] = np.frombuffer(file.read_bytes(), np.int32)
        self.loaded.append(file.name)

    def pinned(self, count: int) -> np.ndarray:
        return np.full(count, -1, np.int32)

    def at(self, address: int) -> np.ndarray:
        assert not self.closed, "memory used after it was freed"
        assert address in self.memory, f"no memory at {address}"
        return self.memory[address]

    def put(self, name: str, work: Callable[[], None]) -> None:
        assert not self.closed, "work for a device that is closed"

        def logged() -> None:
            self.log.append(name)
            work()

        if self.recording is not None:
            self.graphs[-1].append(name)
        (self.queue if self.recording is None else self.recording).append(logged)

    def write(self, address: int, values: Sequence[int]) -> None:
        kept = list(values)
        assert len(kept) <= len(self.at(address)), "a write beyond its buffer"

        def work() -> None:
            self.at(address)[: len(kept)] = kept

        self.put("write", work)

    def read_into(self, pinned: np.ndarray, address: int) -> None:
        def work() -> None:
            pinned[:] = self.at(address)[: len(pinned)]

        self.put("read", work)

    def kernel(self, cubin: Path, name: str) -> Callable[[Sequence[int]], None]:
        raise AssertionError("tests bring their own commit")

    def commit(self, arguments: Sequence[int]) -> None:
        """The commit kernel, in Python."""

        def work() -> None:
            block, accepted, bonus, following, anchor, position, report = (self.at(address) for address in arguments)
            count = int(accepted[0])
            report[: count + 2] = [count + 1, *block[1 : count + 1], bonus[0]]
            anchor[0], position[0] = bonus[0], following[0]

        self.put("commit", work)

    def begin_loop(self, arguments: Sequence[int]) -> None:
        """The kernel before a loop, in Python."""

        def work() -> None:
            self.at(arguments[0])[0] = 0

        self.put("begin", work)

    def commit_loop(self, arguments: Sequence[int]) -> None:
        """The kernel at the end of a loop's body, in Python."""
        *addresses, stride, cycles, handle = arguments

        def work() -> None:
            more = committed([self.at(address) for address in addresses], stride, cycles)
            assert handle in self.conditions, "a handle of no loop"
            self.conditions[handle] = more

        self.put("commit", work)

    def record_loop(
        self, before: Callable[[], None], body: Callable[[int], None], after: Callable[[], None]
    ) -> Callable[[], None]:
        handle = len(self.conditions) + (1 << 40)
        self.conditions[handle] = 0
        self.graphs.append([])
        parts = [self._recorded(work) for work in (before, lambda: body(handle), after)]

        def loop() -> None:
            self.conditions[handle] = 1  # what the condition is at every launch
            while self.conditions[handle]:
                self.log.append("around")
                for work in parts[1]:
                    work()

        def launch() -> None:
            assert not self.closed
            self.queue += [lambda: self.log.append("launch"), *parts[0], loop, *parts[2]]

        return launch

    def _recorded(self, work: Callable[[], None]) -> list[Callable[[], None]]:
        recorded: list[Callable[[], None]] = []
        self.recording = recorded
        try:
            work()
        finally:
            self.recording = None
        return recorded

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.graphs.append([])
        recorded = self._recorded(work)

        def launch() -> None:
            assert not self.closed
            self.queue.append(lambda: self.log.append("launch"))
            self.queue.extend(recorded)

        return launch

    def mark(self) -> Callable[[], None]:
        target = self.done + len(self.queue)

        def wait() -> None:
            while self.done < target:
                self.step()

        return wait

    def step(self) -> None:
        self.queue.pop(0)()
        self.done += 1

    def close(self) -> None:
        while self.queue:
            self.step()
        self.closed = True


def committed(memory: Sequence[np.ndarray], stride: int, cycles: int) -> int:
    """What the kernel at the end of a loop's body does with its memory, and whether it asks for another round."""
    block, accepted, bonus, following, anchor, position, log, ends = memory
    tokens = [*block[1 : int(accepted[0]) + 1].tolist(), int(bonus[0])]
    start = 1 + int(log[0]) * stride
    assert len(tokens) < stride
    assert start + stride <= len(log), "a cycle that the log has no room for"
    log[start : start + 1 + len(tokens)] = [len(tokens), *tokens]
    log[0] += 1
    anchor[0], position[0] = tokens[-1], following[0]
    stops = ends[2 : 2 + int(ends[1])].tolist()
    return int(log[0] < cycles and position[0] <= ends[0] and not set(stops) & set(tokens))


class FakePlan:
    """An engine that computes on addresses. `right(position)` says whether a draft guesses the token there."""

    scratch = 64

    def __init__(
        self,
        device: FakeDevice,
        record: GraphRecord,
        owner: str,
        right: Callable[[int], bool],
        capturable: bool,
        last_bit: int = 0,
    ) -> None:
        """`last_bit` is added to the taps: another width's rounding."""
        self.last_bit = last_bit
        self.device, self.record, self.owner, self.right, self.capturable = device, record, owner, right, capturable
        self.addresses: dict[str, int] = {}
        self.ports = {port.name: port for port in (*record.inputs, *record.outputs)}
        self.given: tuple[int, int] | None = None

    def bytes(self, port: str) -> int:
        return int(np.prod(self.ports[port].shape)) * 4

    def give_scratch(self, address: int, size: int) -> None:
        assert size >= self.scratch
        assert self.device.at(address).nbytes >= size
        self.given = address, size

    def bind(self, port: str, address: int) -> None:
        assert self.device.at(address).nbytes >= self.bytes(port), f"{port} does not fit its memory"
        self.addresses[port] = address

    def enqueue(self) -> None:
        assert self.addresses.keys() == self.ports.keys(), "a port without memory"
        assert self.given is not None
        bound = dict(self.addresses)
        self.device.put(
            self.record.role,
            lambda: getattr(self, f"_{self.record.role}")({name: self.device.at(a) for name, a in bound.items()}),
        )

    def _written(self, memory: dict[str, np.ndarray], tokens: np.ndarray, position: int) -> list[int]:
        assert position + len(tokens) <= ROWS, "a write beyond the cache"
        for name, out in self.record.caches:
            assert memory[name] is memory[out], "a cache that is not updated in place"
            memory[out][position : position + len(tokens)] = tokens
        return memory["k_cache_0"].tolist()

    def _embed(self, memory: dict[str, np.ndarray]) -> None:
        rows = self.record.rows
        assert memory["table"].tolist() == TABLE, "another table"
        memory["embedded"][:rows] = embedded(memory["tokens"][:rows])

    def _prefill(self, memory: dict[str, np.ndarray]) -> None:
        tokens = tokens_of(memory["embedded"][: self.record.rows])
        position, rows = int(memory["position"][0]), len(tokens)
        cache = self._written(memory, tokens, position)
        hidden = [LIFT + choice(cache[: position + row + 1]) for row in range(rows)]
        memory["hidden"][:rows] = hidden
        memory["last"][0] = hidden[max(min(int(memory["valid"][0]), rows) - 1, 0)]
        memory["taps"][:rows] = tokens + self.last_bit

    _verify = _prefill

    def _head(self, memory: dict[str, np.ndarray]) -> None:
        rows = self.record.rows
        assert rows is not None
        assert memory["table"].tolist() == TABLE, "another head"
        position, block = int(memory["position"][0]), memory["block"][:rows].copy()
        tokens = memory["hidden"][:rows] - LIFT
        accepted = next((slot for slot in range(rows - 1) if tokens[slot] != block[slot + 1]), rows - 1)
        memory["tokens"][:rows] = tokens
        memory["proposals"][:rows] = [memory["anchor"][0], *tokens[1:]]
        memory["accepted"][0], memory["bonus"][0], memory["next_position"][0] = (
            accepted,
            tokens[accepted],
            position + accepted + 1,
        )

    def _inject(self, memory: dict[str, np.ndarray]) -> None:
        self._written(memory, memory["taps"][: self.record.rows], int(memory["position"][0]))

    def _draft(self, memory: dict[str, np.ndarray]) -> None:
        position, own = int(memory["position"][0]), "block" in memory
        anchor, *masks = memory["anchor"][:1] if own else tokens_of(memory["embedded"][:BLOCK])
        assert own or masks == [MASK] * (BLOCK - 1), "rows that are not the masks'"
        known = [*memory["k_cache_0"][:position].tolist(), int(anchor)]
        for slot in range(BLOCK - 1):
            true = choice(known)
            known.append(true if self.right(position + 1 + slot) else (true + 1) % VOCAB)
        if own:
            memory["block"][:BLOCK] = known[position:]
        else:
            memory["hidden"][:BLOCK] = [LIFT, *(LIFT + token for token in known[position + 1 :])]
        self._written(
            memory, np.full(BLOCK, 9, np.int32), position
        )  # the block's own rows, to be overwritten before they count


def embedded(tokens: np.ndarray) -> np.ndarray:
    """What stands for a token before the first layer. Memory that nobody wrote stands for none."""
    return tokens * 3 + LIFT


def tokens_of(rows: np.ndarray) -> np.ndarray:
    assert (rows >= LIFT).all(), "rows that nobody embedded"
    return (rows - LIFT) // 3


def bundle_file(name: str) -> Any:
    """The file of that name: each is the table."""
    content = np.array(TABLE, np.int32).tobytes()
    return SimpleNamespace(name=name, stat=lambda: SimpleNamespace(st_size=len(content)), read_bytes=lambda: content)


def manifest(widths: Sequence[int] = (BLOCK,), own_head: bool = False) -> Any:
    """What `Pair` reads of a manifest, with a verify of each of `widths`; with `own_head` the drafter needs neither
    table nor head of the target.
    """
    cache = [(name, f"{name}_out") for name in CACHES["target"]]

    def graph(
        role: str,
        rows: int,
        inputs: dict[str, int],
        outputs: dict[str, int],
        engine: tuple[str, int] | None = None,
        cached: bool = True,
    ) -> GraphRecord:
        taken, given = (
            [PortRecord(name=name, dtype="int32", shape=[1, 1, ROWS, 1]) for name in names] if cached else []
            for names in zip(*cache, strict=True)
        )
        ports = [
            [PortRecord(name=name, dtype="int32", shape=[1, size]) for name, size in side.items()]
            for side in (inputs, outputs)
        ]
        return GraphRecord(
            role=role,
            file=engine[0] if engine else role,
            rows=rows,
            inputs=ports[0] + taken,
            outputs=ports[1] + given,
            caches=cache if cached else [],
            arch=ARCH,
            profile=engine[1] if engine else None,
            weights={"table": "table.bin"} if "table" in inputs else {},
        )

    one = {"position": 1}
    counts = {"accepted": 1, "bonus": 1, "next_position": 1}
    calls = [("prefill", CHUNK), *(("verify", rows) for rows in sorted(widths, reverse=True))]
    target = [
        graph(
            role,
            rows,
            {"embedded": rows, "valid": 1} | one,
            {"hidden": rows, "last": 1, "taps": rows},
            ("body", number),
        )
        for number, (role, rows) in enumerate(calls)
    ]
    for number, (_, rows) in enumerate([*calls, ("draft", 1)]):
        target.append(
            graph(
                "embed",
                rows,
                {"tokens": rows, "table": len(TABLE)},
                {"embedded": rows},
                ("embed", number),
                cached=False,
            )
        )
    for number, (_, rows) in enumerate(calls[1:]):
        taken = {"hidden": rows, "block": rows, "anchor": 1, "table": len(TABLE)} | one
        given = {"tokens": rows, "proposals": rows} | counts
        target.append(graph("head", rows, taken, given, ("head", number), cached=False))
    drafter = [graph("inject", rows, {"taps": rows} | one, {}, ("inject", rows)) for rows in (CHUNK, BLOCK)]
    read = ({"anchor": 1}, {"block": BLOCK}) if own_head else ({"embedded": BLOCK}, {"hidden": BLOCK})
    drafter.append(graph("draft", BLOCK, read[0] | one, read[1]))
    return SimpleNamespace(
        target=SimpleNamespace(graphs=target, vocab=VOCAB),
        drafter=SimpleNamespace(graphs=drafter),
        pairing=SimpleNamespace(block=BLOCK, mask_id=MASK),
        requires=SimpleNamespace(exact_width=BLOCK),
        context=CONTEXT,
    )
