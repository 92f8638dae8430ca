"""Engines on TensorRT: the plans of this machine's architecture, over cuda-core. No torch.

Written for a GPU that the machine which builds it need not have: `tests/device` is what proves it on a card.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

from ...backend import EngineOptions
from ...bundle.manifest import GraphRecord
from ...bundle.read import Bundle
from ...cache import COMPILED
from ...engines import Engines
from ...errors import IncompatibleError
from .device import CudaDevice
from .engines import engines
from .library import INSTALL, installed
from .loop import Kernels
from .pair import Pair
from .plan import Library, Plan

__all__ = ["INSTALL", "commit_file", "installed", "open_engines"]

_MODULES = {"tensorrt-rtx": "tensorrt_rtx", "tensorrt": "tensorrt"}


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
    with ExitStack() as undo:
        device = CudaDevice()
        undo.callback(device.close)
        opened = _open(bundle, options, device)
        undo.pop_all()  # from here on the engines close it
    return opened


def _open(bundle: Bundle, options: EngineOptions, device: CudaDevice) -> Engines:
    check_architecture(bundle, device.arch, device.name)
    if options.device_loop is not None:
        check_loop(bundle, device.arch)
    kernels_file = None if options.cache is None else options.cache / kernels_entry(bundle, device.arch, device.name)
    library = Library(_MODULES[bundle.manifest.requires.package], device, kernels_file)

    def load(record: GraphRecord, whole_graph: bool) -> Plan:
        return Plan(library, bundle.file(record.file), record, whole_graph)

    pair = Pair(bundle.manifest, device.arch, device, load, bundle.file)
    if options.cache is not None:
        library.save_kernels(options.cache)

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
    return engines(pair, commit, loop if options.device_loop else None, options.device_loop or 1)


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


def kernels_entry(bundle: Bundle, arch: str, name: str) -> Path:
    """What TensorRT compiles on this machine, relative to its cache: a file for each bundle, library and GPU."""
    requires, digest = bundle.manifest.requires, hashlib.sha256()
    for file, content in sorted(bundle.manifest.files.items()):
        digest.update(f"{file} {content}\n".encode())
    kind = "-".join(
        "".join(c if c.isalnum() else "_" for c in part) for part in (requires.package, requires.built_with, arch, name)
    )
    return Path(COMPILED, kind, f"{digest.hexdigest()[:16]}.bin")
