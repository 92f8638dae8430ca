"""Time, processor time and memory of opening a bundle, with and without what the machine keeps between runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from alone import alone, peak_mb

WAYS = ("nothing kept", "first", "kept")
MIB = 1 << 20


def memory() -> dict[str, float]:
    """MiB of this process now, and the most it had."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    return {
        "resident": kib["Rss"] / 1024,
        "anonymous": kib["Anonymous"] / 1024,
        "mapped": (kib["Rss"] - kib["Anonymous"]) / 1024,
        "peak": peak_mb() * 1e6 / MIB,
    }


def load_once(bundle: Path, way: str, fill: bool) -> dict[str, float]:
    """One load in this process, which has imported nothing of the runtime yet."""
    start, used = time.perf_counter(), time.process_time()
    from dflash_compile.runtime import load

    session = load(bundle, verify="full" if way == WAYS[0] else "changed")
    figures = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - used, **memory()}
    if fill:
        context = session.manifest.context
        tokens = list(session.tokens([1 + number % 1000 for number in range(context - 16)]))
        assert len(tokens) > 1, "it must decode, too"
        figures |= {f"{name}, full": value for name, value in memory().items()}
    return figures


def bound(bundle: Path) -> float:
    """1.2 times the weights and the caches of `bundle`, in MiB."""
    from dflash_compile.cli.bench.cache import cache_record
    from dflash_compile.runtime.bundle.read import read_manifest

    manifest = read_manifest(bundle)
    caches = cache_record(manifest)
    weights = sum(size for name, size in manifest.sizes.items() if name.endswith(".data"))
    return 1.2 * (weights + caches.target_bytes + caches.drafter_bytes) / MIB


def rounds(bundle: Path, repeats: int, fill: bool, folder: Path) -> dict[str, dict[str, float]]:
    """Medians by way. `first` has an empty cache every time, `kept` that of the last `first`."""
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(repeats):
        cache = folder / str(number)
        for way in WAYS:
            kept = {"DFLASH_COMPILE_CACHE": "off" if way == WAYS[0] else str(cache)}
            taken[way].append(alone(__file__, [str(bundle), way, "fill" if fill else ""], kept))
        shutil.rmtree(cache)
    return {way: {name: round(median(run[name] for run in runs), 2) for name in runs[0]} for way, runs in taken.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `load`."""
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--cache", type=Path, help="where to make caches, on a disk with space; removed again")


def measure(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """A row for each bundle and way; False: nothing can be wrong."""
    if given.cache is not None:
        given.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.cache) as folder:
        return [
            {"bundle": str(bundle), "way": way, **figures, "bound": round(bound(bundle))}
            for bundle in given.bundles
            for way, figures in rounds(bundle, given.repeats, given.fill, Path(folder)).items()
        ], False


if __name__ == "__main__":
    import json

    print(json.dumps(load_once(Path(sys.argv[1]), sys.argv[2], bool(sys.argv[3]))))
