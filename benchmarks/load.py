"""Opening a bundle: time, processor time and memory, with and without what the machine keeps between runs.

    python benchmarks/load.py BUNDLE... [--repeats 5] [--fill] [--cache DIR] [--json]

Every load has a process of its own, and the ways take turns. `nothing kept` hashes every file and packs every weight;
`first` does the same and keeps both; `kept` finds them. `--fill` also writes the caches to the last row, by a prompt
that leaves room for a few tokens, and reads the memory again. Times are medians: `seconds` have passed, `cpu` is what
the process computed, threads added up, and says more on a busy machine. Memory is in MiB, as Linux accounts for it:
`anonymous` is the process's own, `mapped` are pages of files, shared with every process that maps them. `bound` is 1.2
times weights and caches.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WAYS = ("nothing kept", "first", "kept")
MIB = 1 << 20


def memory() -> dict[str, float]:
    """MiB of this process now, and the most it had."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    (peak,) = (
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmHWM")
    )
    return {
        "resident": kib["Rss"] / 1024,
        "anonymous": kib["Anonymous"] / 1024,
        "mapped": (kib["Rss"] - kib["Anonymous"]) / 1024,
        "peak": peak / 1024,
    }


def measure(bundle: Path, way: str, fill: bool) -> dict[str, float]:
    """One load in this process, which has imported nothing of the runtime yet."""
    start, used = time.perf_counter(), time.process_time()
    from dflash_compile.runtime import load

    session = load(bundle, verify="full" if way == "nothing kept" else "changed")
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


def child(bundle: Path, way: str, fill: bool, cache: Path) -> dict[str, float]:
    """`measure` in another process."""
    environment = {**os.environ, "DFLASH_COMPILE_CACHE": "off" if way == "nothing kept" else str(cache)}
    command = [sys.executable, __file__, str(bundle), "--way", way, *(["--fill"] if fill else [])]
    figures: dict[str, float] = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
    )
    return figures


def rounds(bundle: Path, repeats: int, fill: bool, folder: Path) -> dict[str, dict[str, float]]:
    """Medians by way. `first` has an empty cache every time, `kept` that of the last `first`."""
    taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(repeats):
        cache = folder / str(number)
        for way in WAYS:
            taken[way].append(child(bundle, way, fill, cache))
        shutil.rmtree(cache)
    return {way: {name: round(median(run[name] for run in runs), 2) for name in runs[0]} for way, runs in taken.items()}


def main() -> int:
    """Measure every bundle and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="BUNDLE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fill", action="store_true")
    parser.add_argument("--cache", type=Path, help="where to make caches, on a disk with space; removed again")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(measure(arguments.bundles[0], arguments.way, arguments.fill)))
        return 0
    if arguments.cache is not None:
        arguments.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.cache) as folder:
        found = {
            str(bundle): {"bound": round(bound(bundle))}
            | rounds(bundle, arguments.repeats, arguments.fill, Path(folder))
            for bundle in arguments.bundles
        }
    if arguments.json:
        print(json.dumps(found))
        return 0
    for bundle, ways in found.items():
        print(f"{bundle}: bound {ways.pop('bound')} MiB")
        for way, figures in ways.items():
            print(f"  {way:<13}" + "  ".join(f"{name} {value:g}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
