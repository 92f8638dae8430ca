"""What it takes to build for Apple Silicon, and how large the result is, at each precision.

    python benchmarks/apple_packages.py [TARGET DRAFTER] [--only coreml:int4,coreai:fp32] [--max-context N] [--keep DIR]
    [--json]

Every build has a process of its own: `seconds` have passed, `cpu` is what it computed, its children included, and says
more on a busy machine; `peak` is its largest resident set. Steps are timed by what the build says of its progress:
`convert` is tracing, lowering and converting, `check` is running what was saved beside torch. `target` and `drafter`
are the sizes of the two packages. MB are 10⁶ bytes. SmolLM2-135M and the drafter that ships, by default.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALL = ("coreml:fp16", "coreml:int8", "coreml:int4", "coreml:palette6", "coreml:palette4", "coreai:fp32")


def measure(target: str, drafter: str, kind: str, context: int | None, place: Path) -> dict[str, float]:
    """One build in this process, which has imported nothing yet."""
    start = time.perf_counter()
    from dflash_compile.compile.build import BuildOptions, build

    steps: dict[str, float] = defaultdict(float)
    now = ["", start]

    def progress(step: str, _done: float = 0, _total: float = 0, _detail: str = "") -> None:
        steps[str(now[0])] += time.perf_counter() - float(now[1])
        now[:] = [step, time.perf_counter()]

    backend, _, precision = kind.partition(":")
    build(
        target,
        drafter,
        place,
        BuildOptions(backend=backend, precision=precision, context=context, force=True),
        progress,
    )
    progress("")
    times = os.times()
    sizes = {
        owner: sum(file.stat().st_size for file in (place / owner).rglob("*") if file.is_file()) / 1e6
        for owner in ("target", "drafter")
    }
    return {
        "seconds": time.perf_counter() - start,
        "cpu": times.user + times.system + times.children_user + times.children_system,
        "convert": steps["tracing and lowering"] + steps["converting"],
        "check": steps["checking the packages"] + steps["trying the engines"],
        "peak": peak_mb(),
        **sizes,
    }


def peak_mb() -> float:
    """This process's largest resident set, in MB. Unlike getrusage's it does not inherit that of the parent."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def alone(arguments: argparse.Namespace, kind: str, place: Path) -> dict[str, float]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, arguments.target, arguments.drafter, "--only", kind, "--stage", str(place)]
    command += [] if arguments.max_context is None else ["--max-context", str(arguments.max_context)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="smollm2-135m")
    parser.add_argument("drafter", nargs="?", default=str(ROOT / "artifacts" / "smollm2-135m-dflash"))
    parser.add_argument("--only", default=",".join(ALL), help="back-end and precision of each build")
    parser.add_argument("--max-context", type=int)
    parser.add_argument("--keep", type=Path, help="where the bundles stay; they are deleted by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage is not None:
        print(
            json.dumps(
                measure(arguments.target, arguments.drafter, arguments.only, arguments.max_context, arguments.stage)
            )
        )
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.only.split(","):
            found[kind] = alone(arguments, kind, (arguments.keep or Path(folder)) / kind.replace(":", "-"))
            if not arguments.json:
                print(kind, "  ".join(f"{name} {value:.0f}" for name, value in found[kind].items()), flush=True)
    if arguments.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
