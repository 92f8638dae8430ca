"""The kernels of a loop on the device: a cycle's end that keeps a log and says whether another one follows. Compiled
when the bundle is built.

In a file of their own, because a driver before CUDA 12.3 has no conditional nodes and could not load them.
"""

from __future__ import annotations

from pathlib import Path

from .cubins import write_cubin

# NVRTC has no header of it: the driver provides the function, which sets whether the body of a graph's while node runs
# again.
_DECLARED = r"""
extern "C" __device__ __cudart_builtin__ void CUDARTAPI cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);
"""

# Arguments are 64 bits each, so that a launch need not know which are addresses.
SOURCE = r"""
// log: how many cycles there were, then for each of them a count and its tokens, `stride` integers.
extern "C" __global__ void begin_loop(int* log) { log[0] = 0; }

// ends: the last position that a cycle may start at, how many tokens end an answer, and those tokens.
extern "C" __global__ void commit_loop(const int* block, const int* accepted, const int* bonus, const int* next_position,
                                       int* anchor, int* position, int* log, const int* ends,
                                       long long stride, long long cycles, cudaGraphConditionalHandle again)
{
    const int count = *accepted + 1, cycle = log[0];
    int* entry = log + 1 + cycle * stride;
    entry[0] = count;
    for (int i = 1; i < count; ++i) entry[i] = block[i];
    entry[count] = *bonus;
    bool more = cycle + 1 < cycles && *next_position <= ends[0];
    for (int i = 1; i <= count; ++i)
        for (int k = 0; k < ends[1]; ++k) more = more && entry[i] != ends[2 + k];
    log[0] = cycle + 1;
    *anchor = *bonus;
    *position = *next_position;
    cudaGraphSetConditional(again, more);
}
"""


def write_loop_kernels(arch: str, file: Path) -> None:
    """The kernels' cubin for `arch`. As `write_commit_kernel`."""
    write_cubin(_DECLARED + SOURCE, arch, file)
