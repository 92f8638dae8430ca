"""How many rows ONNX Runtime's engines are called with: what a build decides of it, and bundles record."""

from __future__ import annotations

from dflash_compile.runtime.bundle.manifest import PREFILL_ROWS


def widest(block: int) -> int:
    """Most rows of one call, where blocks have `block` rows."""
    return max(PREFILL_ROWS, block + block % 2)
