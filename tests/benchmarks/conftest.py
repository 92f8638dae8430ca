"""Importing this first lets tests in this folder import `peer` of the benchmarks, and `tiny` of the runtime's tests, by
name.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "benchmarks", ROOT / "tests" / "runtime"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
