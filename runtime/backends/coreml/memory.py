"""Whether a bundle fits the memory that CPU, GPU and everything else on the machine share, asked before anything is
loaded.
"""

from __future__ import annotations

import os

from ...errors import IncompatibleError

_SHARE = 0.75
"""of all memory, what macOS lets a process keep resident for the GPU before it swaps"""
_WORKING = 1 << 29
"""activations, tokenizer and Python itself"""


def check_fits(engines: int, states: int, total: int | None = None) -> None:
    """Raises `IncompatibleError`, with the figures, where `engines` and `states` bytes would make the machine swap.

    `total` is the machine's memory in bytes; by default what the system says. Where it says nothing, nothing is
    refused.
    """
    memory = _total() if total is None else total
    needed = engines + states + _WORKING
    if memory and needed > memory * _SHARE:
        raise IncompatibleError(
            f"the bundle needs {_gib(needed)} and this machine can give {_gib(int(memory * _SHARE))} of its"
            f" {_gib(memory)}",
            why=(
                f"weights {_gib(engines)}, cache {_gib(states)}, working memory {_gib(_WORKING)}: it would swap at"
                " every token"
            ),
            fix=(
                "build it with fewer bits (--precision int4) or a shorter --max-context, or use a machine with more"
                " memory"
            ),
        )


def _total() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
