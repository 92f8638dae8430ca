"""A measurement in a process of its own, and the peak memory of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def peak_mb() -> float:
    """This process's peak resident set, in MB (10⁶). Unlike getrusage's it does not inherit that of the parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / 1e6


def alone(script: str, words: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, float]:
    """The figures that `script`, run with `words`, prints as its last line of JSON; none where it prints nothing."""
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, script, *words],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path} | (environment or {}),
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return figures
