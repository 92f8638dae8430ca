"""What a plan file says of itself: kernels, fused attention, copies of the cache, scratch memory.

The text inside is TensorRT's own and undocumented: what cannot be found is None, never an error.
"""

from __future__ import annotations

import mmap
import re
from itertools import islice
from pathlib import Path

from dflash_compile.runtime.bundle.manifest import PlanRecord

# Of an engine's own programs, one for each width; those of single fusions that follow them have no memory of their own.
_PROGRAM = re.compile(rb"header \{\n(?:  \w+ = \d+\n)*  memory_budget = \d+")
_MAIN = re.compile(rb"main \{\n label ")
_KERNEL = re.compile(
    rb"^  (?:(?P<kind>function|runtime_fusion|runtime_function|fully_connected|gemm|convolution)=\{)(?:"
    rb" name=(?P<name>\w+))?(?P<rest>[^\n]*)",
    re.MULTILINE,
)
_PORTS = re.compile(rb"^  (?:inputs|outputs)=\{ (?P<names>[^}]*)\}", re.MULTILINE)
_TENSOR = re.compile(rb"tensor=\{[^\n]*? dims=\{ (?P<dims>[\d ]+)\}[^\n]*? name=\"(?P<name>[^\"]+)\"")
_SCRATCH = re.compile(rb"region = \{ name=devmem size=(\d+)")
_CAPTURABLE = re.compile(rb"stream_capturable=([01])")
_MOST = 64 << 20
"""the program's text comes first; weights behind it are not read"""


def inspect_plan(path: Path, cache: tuple[int, ...] | None, number: int = 0) -> PlanRecord:
    """Figures of the plan at `path`, of its program `number`; `cache` is the shape of each of its caches, None where it
    has none.
    """
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
        start = next(islice(_PROGRAM.finditer(plan), number, None), None)
        main = _MAIN.search(plan, start.start()) if start else None
        if start is None or main is None:
            return PlanRecord(bytes=size)
        end = plan.find(b"\0", main.start())
        body = plan[main.start() : min(end if end > 0 else size, main.start() + _MOST)]
        head = plan[start.start() : main.start()]
    kernels = list(_KERNEL.finditer(body))
    if not kernels:
        return PlanRecord(bytes=size)
    caches = _cache_tensors(head, cache)
    scratch, capturable = _SCRATCH.search(head), _CAPTURABLE.search(head)
    return PlanRecord(
        bytes=size,
        kernels=len(kernels),
        fused_attention=sum(_attends(kernel) for kernel in kernels),
        cache_copies=sum(_copies_cache(kernel, caches) for kernel in kernels),
        scratch_bytes=None if scratch is None else int(scratch[1]),
        capturable=None if capturable is None else capturable[1] == b"1",
    )


def _cache_tensors(head: bytes, shape: tuple[int, ...] | None) -> set[bytes]:
    """The program's names of the caches, which are not always the ports': those of its inputs and outputs that have
    their shape.
    """
    if shape is None:
        return set()
    ports = {name for match in _PORTS.finditer(head) for name in _quoted(match["names"])}
    shapes = {match["name"]: tuple(map(int, match["dims"].split())) for match in _TENSOR.finditer(head)}
    return {name for name in ports if shapes.get(name) == shape}


def _attends(kernel: re.Match[bytes]) -> bool:
    return b"mha" in (kernel["name"] or b"") or b"backbone=mha" in kernel["rest"]


def _copies_cache(kernel: re.Match[bytes], caches: set[bytes]) -> bool:
    """Whether a kernel reads a cache and leaves it as it was, without attending: then it moves it into other memory."""
    if kernel["kind"] != b"function" or _attends(kernel):
        return False
    taken, given = (_names(kernel["rest"], side) for side in (b"input_args", b"output_args"))
    return bool((taken - given) & caches)


def _names(rest: bytes, side: bytes) -> set[bytes]:
    found = re.search(side + rb"=\{ ([^}]*)\}", rest)
    return set() if found is None else _quoted(found[1])


def _quoted(text: bytes) -> set[bytes]:
    return set(re.findall(rb'"([^"]+)"', text))
