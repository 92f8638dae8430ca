"""CPU time of the target's calls in Core AI bundles of one pair, by turns on the same random tokens; with `--profile`
by operation.

    python benchmarks/coreai_calls.py BUNDLE [BUNDLE…] [--turns N] [--profile]

Every call of a bundle must choose the tokens that the first bundle's does. The first turn warms up and does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from dflash_compile.runtime.bundle.manifest import GraphRecord
from dflash_compile.runtime.bundle.read import read_manifest

ROLES = ("verify", "decode")


class Spent:
    """CPU seconds and calls by operation, from the runtime's own events."""

    def __init__(self) -> None:
        self.of: dict[str, list[float]] = defaultdict(list)
        self._open: dict[int, tuple[str, float]] = {}
        self._count = 0

    def begin(self, event: Any) -> int:
        self._count += 1
        self._open[self._count] = event.event_id, time.process_time()
        return self._count

    def end(self, _event: Any, number: int) -> None:
        name, start = self._open.pop(number)
        self.of[name].append(time.process_time() - start)

    def profiler(self) -> Any:
        from coreai.runtime import Profiler

        return Profiler(None, self.begin, self.end)


async def measure(bundles: list[Path], turns: int, profile: bool) -> None:
    """Prints a line a call, and with `profile` its dearest operations."""
    from coreai.authoring import AIModelAsset
    from coreai.runtime import NDArray

    random, position = np.random.default_rng(0), 0
    calls: dict[tuple[int, str], tuple[Any, GraphRecord, Spent]] = {}
    states: dict[int, Any] = {}
    times: dict[tuple[int, str], list[float]] = defaultdict(list)
    async with AsyncExitStack() as held:
        for number, bundle in enumerate(bundles):
            record = read_manifest(bundle).target
            model = await held.enter_async_context(AIModelAsset.load(bundle / record.graphs[0].file).executable())
            for graph in record.graphs:
                spent = Spent()
                calls[number, graph.role] = (
                    model.load_function(graph.function, profiler=spent.profiler() if profile else None),
                    graph,
                    spent,
                )
            (port,) = (port for port in record.graphs[0].inputs if port.name == "cache")
            states[number] = NDArray(np.zeros([int(size) for size in port.shape], port.dtype))
        vocab = record.vocab
        for turn in range(turns + 1):
            for role in ROLES:
                rows = calls[0, role][1].rows or 1
                tokens, wanted = random.integers(0, vocab, (1, rows)).astype(np.int32), None
                for number, bundle in enumerate(bundles):
                    function, _, spent = calls[number, role]
                    spent.of.clear()
                    given = {"tokens": NDArray(tokens), "position": NDArray(np.array([position], np.int32))}
                    start = time.process_time()
                    results = await function(inputs=given, state={"cache": states[number]})
                    times[number, role] += [time.process_time() - start] if turn else []
                    choices = np.array(results["choices"].numpy())
                    wanted = choices if wanted is None else wanted
                    assert np.array_equal(choices, wanted), f"{bundle} chooses other tokens than {bundles[0]}"
                position += rows
        for (number, role), found in times.items():
            print(
                f"{bundles[number]} {role}: median {1e3 * median(found):.0f} ms of CPU, from {1e3 * min(found):.0f} to"
                f" {1e3 * max(found):.0f}"
            )
            of = calls[number, role][2].of
            for name in sorted(of, key=lambda name: -sum(of[name]))[:8] if profile else ():
                print(f"  {name}: {len(of[name])} in {1e3 * sum(of[name]):.1f} ms")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    asyncio.run(measure(options.bundles, options.turns, options.profile))


if __name__ == "__main__":
    main()
