"""Engines on TensorRT: the plans of this machine's architecture, over cuda-core. No torch.

Written for a GPU that the machine which builds it need not have: `tests/device` is what proves it on a card.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ...backend import EngineOptions
from ...bundle.manifest import GraphRecord
from ...bundle.read import Bundle
from ...engines import Engines
from ...errors import IncompatibleError
from .device import CudaDevice
from .library import INSTALL, installed
from .loop import Kernels
from .pair import Pair, engines
from .plan import Library, Plan

__all__ = ["INSTALL", "commit_file", "installed", "open_engines"]

_MODULES = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}
_NOT_CAPTURED = (
    "This TensorRT cannot capture the engines into one graph: each captures itself, and a cycle takes several launches."
)

_ROUNDS_OTHERWISE = (
    "On this GPU a verify of {rows} rows rounds otherwise than one of {block}: it is not used, since the text must not"
    " depend on how wide a cycle is."
)


def commit_file(arch: str) -> str:
    """The commit kernel compiled for `arch`, relative to the bundle."""
    return f"drafter/commit.{arch}.cubin"


def loop_file(arch: str) -> str:
    """The kernels of a loop on the device, likewise."""
    return f"drafter/loop.{arch}.cubin"


def open_engines(bundle: Bundle, options: EngineOptions) -> Engines:
    """Target, drafter and cycle of `bundle`. See `Backend`.

    Raises `IncompatibleError` for a GPU that the bundle has no engines for.
    """
    device = CudaDevice()
    check_architecture(bundle, device.arch, device.name)
    cycles = options.device_loop
    if cycles is not None:
        check_loop(bundle, device.arch)
    library = Library(
        _MODULES[bundle.manifest.requires.package], device, jit_cache_file(bundle, device.arch, device.name)
    )

    def load(record: GraphRecord, whole_graph: bool) -> Plan:
        return Plan(library, bundle.file(record.file), record, whole_graph)

    pair = Pair(bundle.manifest, device.arch, device, load)
    library.save_jit_cache()
    notes = [] if pair.captures else [_NOT_CAPTURED]
    if pair.unused:
        notes.append(_ROUNDS_OTHERWISE.format(rows=" and ".join(map(str, pair.unused)), block=pair.block))

    def loop() -> Kernels:
        file = bundle.file(loop_file(device.arch))
        try:
            return Kernels(device.kernel(file, "begin_loop"), device.kernel(file, "commit_loop"))
        except Exception as fault:  # the library raises its driver's errors as they are
            raise IncompatibleError(
                "the loop's kernels cannot be loaded",
                why=str(fault),
                fix="update the NVIDIA driver, or leave out device_loop",
            ) from fault

    commit = device.kernel(bundle.file(commit_file(device.arch)), "commit")
    return engines(pair, commit, tuple(notes), loop if cycles else None, cycles or 1)


def check_architecture(bundle: Bundle, arch: str, name: str) -> None:
    """Raises `IncompatibleError`, with the command that mends it, where `bundle` has no engines for the GPU called
    `name`.
    """
    found = sorted({graph.arch for graph in bundle.manifest.target.graphs if graph.arch})
    if arch not in found:
        raise IncompatibleError(
            f"the bundle has no engines for this GPU, {name} ({arch})",
            where=str(bundle.root),
            why=f"it was built for {', '.join(found) or 'none'}",
            fix=f"build it with --backend tensorrt --arch {','.join([*found, arch])}",
        )


def check_loop(bundle: Bundle, arch: str) -> None:
    """Raises `IncompatibleError` where `bundle` was built without the kernels of a loop on the device."""
    if loop_file(arch) not in bundle.manifest.files:
        raise IncompatibleError(
            "the bundle has no kernels for a loop on the device",
            where=str(bundle.root),
            why="an older dflash-compile built it",
            fix="build it again, or leave out device_loop",
        )


def jit_cache_file(bundle: Bundle, arch: str, name: str) -> Path:
    """Where kernels that TensorRT compiles on this machine are kept: one file for each bundle, library and GPU."""
    requires, digest = bundle.manifest.requires, hashlib.sha256()
    for file, content in sorted(bundle.manifest.files.items()):
        digest.update(f"{file} {content}\n".encode())
    base = Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".cache")
    kind = "-".join(
        "".join(c if c.isalnum() else "_" for c in part) for part in (requires.package, requires.built_with, arch, name)
    )
    return base / "dflash-compile" / "tensorrt" / kind / f"{digest.hexdigest()[:16]}.bin"
