"""What idle ONNX Runtime sessions cost the one that works: a draft-verify cycle under four ways to run threads.

    python benchmarks/idle_workers.py BUNDLE [--rows 6] [--threads 2] [--json]

Each way runs in a process of its own, in turns; the figure is the median cycle (inject, draft, verify) in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

WAYS = ("own pool", "own pool, no spinning", "own pool, stops spinning after a run", "one pool for the process")
ROUNDS, CYCLES, WARM_UP = 3, 50, 10


def session(file: Path, way: str, threads: int) -> Any:
    """One engine under `way`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if way == "own pool, no spinning":
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    elif way == "own pool, stops spinning after a run":
        options.add_session_config_entry("session.force_spinning_stop", "1")
    elif way == "one pool for the process":
        options.use_per_session_threads = False
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def bound(engine: Any, rows: int) -> tuple[Any, list[Any]]:
    """A binding with every port filled at `rows` rows and position 128, and what must stay alive for it."""
    import onnxruntime

    binding, values = engine.io_binding(), {}
    sizes = {"proposals": rows - 1}
    for port in engine.get_inputs():
        shape = [sizes.get(size, rows) if isinstance(size, str) else size for size in port.shape]
        array = np.zeros(shape, np.int32 if port.type == "tensor(int32)" else np.float32)
        if port.name == "position":
            array[:] = 128
        values[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)
        binding.bind_ortvalue_input(port.name, values[port.name])
    for port in engine.get_outputs():
        cache = values.get(port.name.removesuffix("_out"))
        if cache is None:
            shape = [sizes.get(size, rows) if isinstance(size, str) else size for size in port.shape]
            cache = values[port.name] = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32), "cpu", 0)
        binding.bind_ortvalue_output(port.name, cache)
    return binding, list(values.values())


def measure(bundle: Path, way: str, rows: int, threads: int) -> float:
    """Median cycle in milliseconds."""
    import onnxruntime

    if way == "one pool for the process":
        onnxruntime.set_global_thread_pool_sizes(threads, 1)
    engines = [
        session(bundle / file, way, threads)
        for file in ("drafter/inject.onnx", "drafter/draft.onnx", "target/target.onnx")
    ]
    bindings = [bound(engine, rows) for engine in engines]
    times = []
    for _ in range(WARM_UP + CYCLES):
        start = time.perf_counter()
        for engine, (binding, _) in zip(engines, bindings, strict=True):
            engine.run_with_iobinding(binding)
        times.append(time.perf_counter() - start)
    return 1000 * median(times[WARM_UP:])


def main() -> int:
    """Measure every way in turns and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(measure(arguments.bundle, arguments.way, arguments.rows, arguments.threads))
        return 0
    command = [
        sys.executable,
        __file__,
        str(arguments.bundle),
        "--rows",
        str(arguments.rows),
        "--threads",
        str(arguments.threads),
        "--way",
    ]
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way in WAYS:
            taken[way].append(float(subprocess.run([*command, way], check=True, stdout=subprocess.PIPE).stdout))
    figures = {way: round(median(values), 2) for way, values in taken.items()}
    print(json.dumps(figures) if arguments.json else "\n".join(f"{way}: {value} ms" for way, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
