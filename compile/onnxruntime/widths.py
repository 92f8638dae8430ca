"""How many rows ONNX Runtime's engines are called with: what a build decides of it, and bundles record."""

from __future__ import annotations

PREFILL = 64
"""rows of a call that takes in a prompt: wider ones cost no less per token, and more memory for taps"""


def widest(block: int) -> int:
    """Most rows of one call, where blocks have `block` rows."""
    return max(PREFILL, block + block % 2)
