"""The tiny bundle, by name."""

from __future__ import annotations

import sys
from pathlib import Path

if (RUNTIME := str(Path(__file__).parents[1] / "runtime")) not in sys.path:
    sys.path.insert(0, RUNTIME)
