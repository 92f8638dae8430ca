"""A whole cycle as one graph of the device: draft, verify, inject, commit, and one small copy back.

Two graphs that differ in where the copy goes take turns, so that a cycle can run while the host reads what the one
before it found. The end of an answer is seen one cycle late: what was computed beyond it is thrown away. So is a change
of width: each width has two graphs of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ...engines import Cycled, CycleEngine
from .device import Device, Launch
from .steps import Chain

SIDES = 2


@dataclass(frozen=True)
class State:
    """Addresses of what a cycle starts from, int32 [1] each, and of what it reports: a count, then as many tokens."""

    anchor: int
    position: int
    report: int


@dataclass(frozen=True)
class _Flight:
    """A cycle under way."""

    anchor: int
    position: int
    width: int
    side: int
    wait: Callable[[], None]


class Cycle(CycleEngine):
    """`commit` puts the kernel on the stream that moves `state` on and writes the report."""

    def __init__(
        self,
        device: Device,
        runners: Mapping[int, Sequence[Chain]],
        commit: Callable[[], None],
        state: State,
        *,
        context: int,
        rows: int,
        captures: bool,
    ) -> None:
        """`runners` are, for each width, draft, verify and inject, bound and warm; `rows` is how many the caches
        have.
        """
        super().__init__(context=context, widths=sorted(runners))
        self._device, self._state, self._rows = device, state, rows
        self._reports = [device.pinned(self.widths[-1] + 1) for _ in range(SIDES)]

        def work(width: int, side: int) -> Callable[[], None]:
            def put() -> None:
                for runner in runners[width]:
                    runner.enqueue()
                commit()
                device.read_into(self._reports[side], state.report)

            return put

        pieces = {(width, side): work(width, side) for width in self.widths for side in range(SIDES)}
        # Without capture the same work is put on the stream piece by piece.
        self._launches: dict[tuple[int, int], Launch] = {
            key: device.record(put) if captures else put for key, put in pieces.items()
        }
        self._ahead: _Flight | None = None
        self._side = 0

    def close(self) -> None:
        self._land()

    def _begin_impl(self, end: int, eos_ids: Collection[int]) -> None:
        # A cycle of the answer before may start with this one's anchor, at its position: only the tokens before them
        # differ.
        self._land()

    def _run_impl(self, anchor: int, position: int, width: int) -> Cycled:
        flight = self._ahead
        if (
            flight is None
            or (flight.anchor, flight.position) != (anchor, position)
            or position + flight.width > self.context
        ):
            self._land()
            self._device.write(self._state.anchor, [anchor])
            self._device.write(self._state.position, [position])
            flight = self._launch(anchor, position, width)
        self._ahead = None
        # Where the next one starts is known to the device only; at most it is a whole block further on. It writes as
        # many rows as the widest.
        following = self._launch(-1, -1, width) if position + 2 * self.widths[-1] <= self._rows else None
        flight.wait()
        report = self._reports[flight.side]
        tokens = [int(token) for token in report[1 : 1 + int(report[0])]]
        if following is not None:
            self._ahead = _Flight(tokens[-1], position + len(tokens), width, following.side, following.wait)
        return Cycled(tokens, flight.width)

    def _launch(self, anchor: int, position: int, width: int) -> _Flight:
        side, self._side = self._side, (self._side + 1) % SIDES
        self._launches[width, side]()
        return _Flight(anchor, position, width, side, self._device.mark())

    def _land(self) -> None:
        """Wait for a cycle that nobody asked for."""
        if self._ahead is not None:
            self._ahead.wait()
            self._ahead = None
