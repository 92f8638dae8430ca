"""A pair on the GPU of `trt_fakes`, and what it is tried with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from trt_fakes import ARCH, BLOCK, FakeDevice, FakePlan, bundle_file, manifest

from dflash_compile.runtime.backends.tensorrt.engines import engines
from dflash_compile.runtime.backends.tensorrt.loop import Kernels
from dflash_compile.runtime.backends.tensorrt.pair import Pair
from dflash_compile.runtime.bundle.manifest import GraphRecord
from dflash_compile.runtime.engines import Engines
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import PLAIN, Controller, CyclePlan, FixedWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.statistics import Recorder

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
PATTERNS: dict[str, Callable[[int], bool]] = {
    "never right": lambda _: False,
    "always right": lambda _: True,
    "now and then": lambda position: position % 3 != 0,
    "rarely": lambda position: position % 5 == 0,
}


class Machine:
    """A pair on a fake device."""

    def __init__(
        self,
        right: Callable[[int], bool] = lambda _: True,
        capturable: bool = True,
        drop: str = "",
        widths: Sequence[int] = (BLOCK,),
        unlike: int = 0,
        cycles: int = 0,
        own_head: bool = False,
        kernels: Callable[[FakeDevice], Kernels] = lambda device: Kernels(device.begin_loop, device.commit_loop),
    ) -> None:
        """`unlike` is a width of verify that rounds otherwise; `cycles` are those of a loop on the device, if any,
        which `kernels` loads.
        """
        self.device, self.manifest = FakeDevice(), manifest(widths, own_head)
        self.whole_graph: list[str] = []
        if drop:
            self.manifest.drafter.graphs = [graph for graph in self.manifest.drafter.graphs if graph.role != drop]

        def load(record: GraphRecord, whole_graph: bool) -> FakePlan:
            self.whole_graph += [record.role] if whole_graph else []
            owner = "target" if record in self.manifest.target.graphs else "drafter"
            return FakePlan(
                self.device, record, owner, right, capturable, int(record.role == "verify" and record.rows == unlike)
            )

        self.pair = Pair(self.manifest, ARCH, self.device, load, bundle_file)
        self.engines: Engines = engines(
            self.pair, self.device.commit, (lambda: kernels(self.device)) if cycles else None, cycles
        )
        self.device.log.clear()

    def answer(
        self,
        prompt: list[int],
        count: int,
        draft: bool = True,
        width: int = BLOCK,
        controller: Controller | None = None,
        eos: Sequence[int] = (),
    ) -> list[int]:
        return list(self.started(prompt, count, draft, width, controller, eos))

    def started(
        self,
        prompt: list[int],
        count: int,
        draft: bool = True,
        width: int = BLOCK,
        controller: Controller | None = None,
        eos: Sequence[int] = (),
    ) -> Generator[int, None, None]:
        self.record, request = Recorder(BLOCK), Request(prompt, count, draft=draft)
        limits = plan_limits(request, self.engines.target, eos)
        return run(self.engines, request, limits, controller or FixedWidth(width), self.record)


class Turns:
    """Widths by turns, whatever comes of them."""

    def __init__(self, *widths: int) -> None:
        self.widths, self.asked, self.ran = widths, 0, list[int]()

    def prefilled(self, rows: int, seconds: float) -> None:
        pass

    def plan(self, most: int, match: int) -> CyclePlan:
        self.asked += 1
        width = self.widths[(self.asked - 1) % len(self.widths)]
        return CyclePlan(width, width > PLAIN) if width <= most else CyclePlan(PLAIN, drafted=False)

    def observe(self, plan: CyclePlan, accepted: int, seconds: float, verify_seconds: float) -> None:
        assert accepted < plan.width
        self.ran.append(plan.width)

    def note_lookup(self, match: int, observed: int, accepted: int) -> None:
        raise AssertionError("nothing is looked up here")
