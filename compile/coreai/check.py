"""Running every entry point of a saved `.aimodel` beside the torch program.

In a process of its own: the runtime aborts where it fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from ..apple.caches import CACHE
from ..apple.lower import Stateful
from ..apple.parity_check import compare, parity_check
from ..apple.reference import Array, Reference

TOLERANCE = 1e-4
"""of the largest number of an output, in float32"""
_LINES = 6


def check_model(model: Path, graphs: Sequence[Stateful], sources: Mapping[Owner, TensorSource]) -> None:
    """Raises `BuildError` where an entry point of `model` aborts or differs from its traced graph."""
    checks = {graph.role.function: parity_check(graph) for graph in graphs}
    feeds: dict[str, Array] = {}
    for function, check in checks.items():
        feeds[f"{function}/{CACHE}"] = check.state
        feeds |= {
            f"{function}/{number}/{name}": value
            for number, call in enumerate(check.calls)
            for name, value in call.items()
        }
    with tempfile.TemporaryDirectory() as folder:
        given, answers = Path(folder) / "given.npz", Path(folder) / "answers.npz"
        np.savez(given, **feeds)  # type: ignore[arg-type]
        run = subprocess.run(
            [sys.executable, "-m", "dflash_compile.compile.coreai.child", str(model), str(given), str(answers)],
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise BuildError(
                f"Core AI cannot run {model.name}",
                why="\n".join(run.stderr.strip().splitlines()[-_LINES:]),
                fix="report this, with both config.json",
            )
        with np.load(answers) as stored:
            found = dict(stored)
    for graph in graphs:
        function, check = graph.role.function, checks[graph.role.function]
        calls = []
        for number in range(len(check.calls)):
            results = {port.name: found[f"{function}/{number}/{port.name}"] for port in graph.role.results}
            calls.append((results, found[f"{function}/{number}/{CACHE}"]))
        compare(graph, check, Reference(graph, sources, {}), calls, TOLERANCE)
