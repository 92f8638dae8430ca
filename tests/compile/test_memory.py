"""The memory promises, measured: exporting reads no weights, a build holds no more than its largest layer and some
room.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "export_memory.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [[], ["--bind"], ["--bind", "--precision", "fp32"]], ids=["export", "build int8", "build fp32"]
)
def test_the_shape_of_qwen3_0_6b_stays_within_its_bound(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--json", *arguments], stdout=subprocess.PIPE, check=False)
    figures = json.loads(done.stdout)
    assert done.returncode == 0, figures
    bound = figures["largest_layer_mb"] + 1000 if arguments else 1000
    assert 100 < figures["peak_rss_mb"] <= bound
