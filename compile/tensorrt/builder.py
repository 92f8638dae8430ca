"""Building a plan from an ONNX file, in a worker process, with progress. A build that ends early leaves no file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dflash_compile.runtime.errors import BuildError

from .mapped import External

Heard = Callable[[str, int, int], None]
"""called with the builder's phase, and how many of how many steps of it are done"""

_WORKER = f"{__package__}.worker"
# glibc gives blocks of this size back at once, but raises it to 32 MiB as soon as one was freed; after that, holes of
# the builder's tensors stay resident: most of a copy of the weights, with two widths in one engine. Other allocators
# ignore it.
_BLOCK_BYTES = "MALLOC_MMAP_THRESHOLD_"


@dataclass(frozen=True)
class Request:
    """One engine to build."""

    module: str
    """TensorRT's Python module"""
    onnx: str
    plan: str
    """file to write"""
    arch: str
    """in TensorRT's spelling: SM89"""
    caches: tuple[tuple[str, str], ...]
    attentions: int
    """layers that attend, to be found again in the network"""
    mark_queries: bool
    profiles: tuple[dict[str, tuple[int, ...]], ...] = ()
    """for each width of an engine of several, the shapes of the inputs that depend on it"""


@dataclass(frozen=True)
class Built:
    """What a build cost."""

    seconds: float
    peak_bytes: int | None
    """most resident memory of the worker process, weights mapped from the ONNX file included; None where the system
    does not tell"""
    queries: tuple[str, ...]
    """outputs added for the sake of attention, which hold nothing of interest"""


def build_plan(request: Request, heard: Heard = lambda *_: None) -> Built:
    """Write the plan.

    Raises `BuildError` with the library's own words where there is none; any exception of `heard` cancels.
    """
    finished = False
    with tempfile.TemporaryFile("w+") as complaints:
        process = _start(complaints)
        try:
            assert process.stdin is not None
            json.dump(asdict(request) | {"weights": _external(Path(request.onnx))}, process.stdin)
            process.stdin.close()
            built = _listen(process, heard, request)
            if built is None:
                raise _died(process.wait(), complaints, request)
            process.wait()
            finished = True
            return built
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            if not finished:
                Path(request.plan).unlink(missing_ok=True)


def _external(onnx: Path) -> list[External]:
    """Where the initializers are that lie beside the graph's file."""
    values = [value.const_value for value in ir.load(onnx).graph.initializers.values()]
    found = [tensor for tensor in values if isinstance(tensor, ir.ExternalTensor)]
    return [(str(tensor.name), str(tensor.path), tensor.offset or 0, tensor.nbytes) for tensor in found]


def _start(complaints: Any) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, sys.path))  # the worker finds what this process finds
    return subprocess.Popen(
        [sys.executable, "-m", _WORKER],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env={_BLOCK_BYTES: "131072", **os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
    )


def _listen(process: subprocess.Popen[str], heard: Heard, request: Request) -> Built | None:
    """The result, or None where the process ended without one."""
    assert process.stdout is not None
    for line in process.stdout:
        said = json.loads(line)
        if "phase" in said:
            heard(said["phase"], said["done"], said["total"])
        elif "fault" in said:
            if said.get("errno"):
                raise OSError(said["errno"], said["fault"])
            raise BuildError(
                "TensorRT cannot build an engine",
                where=Path(request.plan).name,
                why=said["fault"],
                fix="report this, with the model's config.json",
            )
        else:
            result = said["result"]
            return Built(result["seconds"], result["peak_bytes"], tuple(result["queries"]))
    return None


def _died(code: int, complaints: Any, request: Request) -> BuildError:
    complaints.seek(0)
    last = complaints.read()[-600:].strip()
    memory = " (killed: most often by the system, for lack of memory)" if code == -9 else ""
    return BuildError(
        "the process that builds an engine ended by itself",
        where=Path(request.plan).name,
        why=f"exit code {code}{memory}; it last said: {last or 'nothing'}",
        fix="close other programs, or build with a smaller precision"
        if memory
        else "report this, with the model's config.json",
    )
