"""Many cycles as one graph of the device, which goes round until the answer ends, the cache is full, or it has done as
many as it may.

    begin ─▶ while: draft ─▶ verify ─▶ inject ─▶ commit ─▶ copy of the log

The host writes where to start and where to end, waits for the launch, and hands out what the log says cycle by cycle.
An experiment that is asked for: nobody sees a token before the launch ends, and nobody has run it on a card. That
TensorRT's engines may be captured into the body of a while node is documented by neither library; CUDA lets such a body
hold kernels, copies and fills of device memory, and no allocation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from ...engines import Cycled, CycleEngine
from ...errors import IncompatibleError
from .device import Device, Launch
from .steps import Chain

MOST_ENDS = 62
"""ids that the device looks for; an answer that ends with another one ends in the host, and the rest of the launch is
thrown away"""

_INT = 4


@dataclass(frozen=True)
class Kernels:
    """Functions that put the loop's kernels on the stream. Sources and arguments: compile/tensorrt/loop_kernel.py."""

    begin: Callable[[Sequence[int]], None]
    commit: Callable[[Sequence[int]], None]


@dataclass(frozen=True)
class Places:
    """Addresses of int32 buffers that verify leaves its answer in, in the order that the commit kernel takes them, and
    of what a cycle starts from.
    """

    answer: tuple[int, int, int, int]
    """block, accepted, bonus, next_position"""
    anchor: int
    position: int


class Loop(CycleEngine):
    """Up to `cycles` cycles a launch.

    Raises `IncompatibleError` where the device cannot, and can be used without it then.
    """

    def __init__(
        self,
        device: Device,
        runners: Mapping[int, Sequence[Chain]],
        kernels: Kernels,
        places: Places,
        *,
        cycles: int,
        context: int,
        rows: int,
    ) -> None:
        """`runners` are, for each width, draft, verify and inject, bound and warm; `rows` is how many the caches have.

        Overwrites the caches.
        """
        super().__init__(context=context, widths=sorted(runners))
        self._device, self._places, self._rows = device, places, rows
        self._stride = self.widths[-1] + 1
        size = 1 + cycles * self._stride
        self._log, self._ends, self._found = (
            device.allocate(size * _INT),
            device.allocate((2 + MOST_ENDS) * _INT),
            device.pinned(size),
        )
        arguments = [*places.answer, places.anchor, places.position, self._log, self._ends, self._stride, cycles]

        def recorded(width: int) -> Launch:
            def body(handle: int) -> None:
                for runner in runners[width]:
                    runner.enqueue()
                kernels.commit([*arguments, handle])

            return device.record_loop(
                lambda: kernels.begin([self._log]), body, lambda: device.read_into(self._found, self._log)
            )

        self._launches = {width: recorded(width) for width in self.widths}
        self._end, self._eos_ids = 0, list[int]()
        self._waiting: deque[Cycled] = deque()
        self._next = (-1, -1)
        """anchor and position that the first cycle of those waiting starts from"""
        for width in self.widths:
            self._try(width)

    def close(self) -> None:
        """Nothing runs: every launch was waited for."""

    def _begin_impl(self, end: int, eos_ids: Collection[int]) -> None:
        self._waiting.clear()
        self._end, self._eos_ids = end, sorted(eos_ids)[:MOST_ENDS]

    def _run_impl(self, anchor: int, position: int, width: int) -> Cycled:
        # Whatever the host did in between moved the position on, past the start of what waits.
        if not self._waiting or self._next != (anchor, position):
            self._waiting = deque(self._launch(anchor, position, width))
        done = self._waiting.popleft()
        self._next = (done.tokens[-1], position + len(done.tokens))
        return done

    def _launch(self, anchor: int, position: int, width: int) -> list[Cycled]:
        """The cycles of one launch, at least one."""
        began = perf_counter()
        # Every cycle writes as many rows as the widest, and what it gives must fit the context; behind the answer's end
        # none is wanted.
        last = min(self._rows - self.widths[-1], self.context - width, self._end - 1)
        self._device.write(self._places.anchor, [anchor])
        self._device.write(self._places.position, [position])
        self._device.write(self._ends, [last, len(self._eos_ids), *self._eos_ids])
        self._launches[width]()
        self._device.mark()()
        found = [int(value) for value in self._found]
        entries = [found[1 + cycle * self._stride :][: self._stride] for cycle in range(found[0])]
        seconds = (perf_counter() - began) / max(len(entries), 1)
        return [Cycled(entry[1 : 1 + entry[0]], width, seconds) for entry in entries]

    def _try(self, width: int) -> None:
        """A launch that must end after its first cycle: faults are to come now, not in the middle of an answer."""
        self._begin_impl(0, ())
        if len(self._launch(0, 0, width)) != 1:
            raise IncompatibleError(
                "the GPU does not end a loop where it must",
                why="a trial went on",
                fix="update the NVIDIA driver, or leave out device_loop",
            )
