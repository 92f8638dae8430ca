"""What a plan file says of itself: kernels, fused attention, copies of the cache, scratch memory.

The text inside is TensorRT's own and undocumented: what cannot be found is None, never an error.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from dflash_compile.runtime.bundle.manifest import PlanRecord

_PROGRAM = re.compile(rb"header \{\n  version = \d+")
_MAIN = re.compile(rb"main \{\n label ")
_KERNEL = re.compile(
    rb"^  (?:(?P<kind>function|runtime_fusion|runtime_function|fully_connected|gemm|convolution)=\{)(?: name=(?P<name>\w+))?(?P<rest>[^\n]*)", re.MULTILINE
)
_ARGUMENTS = re.compile(rb"(?<!_)(?P<side>input_args|output_args|outputs|inputs)=\{ (?P<names>[^}]*)\}")
_SCRATCH = re.compile(rb"region = \{ name=devmem size=(\d+)")
_CAPTURABLE = re.compile(rb"stream_capturable=([01])")
_MOST = 64 << 20
"""the program's text comes first; weights behind it are not read"""


def inspect_plan(path: Path, caches: frozenset[str]) -> PlanRecord:
    """Figures of the plan at `path`; `caches` are the names of cache outputs."""
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        start = _PROGRAM.search(plan)
        main = _MAIN.search(plan, start.start()) if start else None
        if start is None or main is None:
            return PlanRecord(bytes=size)
        end = plan.find(b"\0", main.start())
        body = plan[main.start() : min(end if end > 0 else size, main.start() + _MOST)]
        head = plan[start.start() : main.start()]
    kernels = list(_KERNEL.finditer(body))
    if not kernels:
        return PlanRecord(bytes=size)
    scratch, capturable = _SCRATCH.search(head), _CAPTURABLE.search(head)
    return PlanRecord(
        bytes=size,
        kernels=len(kernels),
        fused_attention=sum(b"mha" in (kernel["name"] or b"") or b"backbone=mha" in kernel["rest"] for kernel in kernels),
        cache_copies=sum(_copies_cache(kernel, caches) for kernel in kernels),
        scratch_bytes=None if scratch is None else int(scratch[1]),
        capturable=None if capturable is None else capturable[1] == b"1",
    )


def _copies_cache(kernel: re.Match[bytes], caches: frozenset[str]) -> bool:
    """Whether a kernel only moves a cache into other memory: attention reads caches too, and updates write into them."""
    name = kernel["name"] or b""
    if kernel["kind"] != b"function" or b"mha" in name:
        return False
    taken, given = (_names(kernel["rest"], side) for side in (b"input_args", b"output_args"))
    return bool(taken & caches) and not given & caches


def _names(rest: bytes, side: bytes) -> set[str]:
    found = next((match for match in _ARGUMENTS.finditer(rest) if match["side"] == side), None)
    return set() if found is None else {name.rpartition(".")[0] or name for name in re.findall(r'"([^"]+)"', found["names"].decode())}
