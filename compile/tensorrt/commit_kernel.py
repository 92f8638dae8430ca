"""The kernel that ends a cycle: what was accepted, and where the next cycle starts.

Compiled when the bundle is built.
"""

from __future__ import annotations

from pathlib import Path

from .cubins import write_cubin

# Arguments are 64 bits each, so that a launch need not know which are addresses.
SOURCE = r"""
extern "C" __global__ void commit(const int* block, const int* accepted, const int* bonus, const int* next_position,
                                  int* anchor, int* position, int* report)
{
    const int count = *accepted;
    report[0] = count + 1;
    for (int i = 1; i <= count; ++i) report[i] = block[i];
    report[count + 1] = *bonus;
    *anchor = *bonus;
    *position = *next_position;
}
"""


def write_commit_kernel(arch: str, file: Path) -> None:
    """The kernel's cubin for `arch`. Needs NVRTC, not a GPU. Raises `IncompatibleError` where that is not installed."""
    write_cubin(SOURCE, arch, file)
