"""Which TensorRT builds the engines: TensorRT for RTX, or the full TensorRT. One network-building path serves both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from dflash_compile.runtime.errors import IncompatibleError, UsageError


@dataclass(frozen=True)
class Flavour:
    """One of NVIDIA's two libraries of the same interface."""

    name: str
    """as `--flavour` takes it"""
    module: str
    package: str
    install: str
    supported: str
    """the version this back-end was written for and its engines are tied to"""
    anywhere: bool = True
    """whether it compiles for GPUs that are not there"""

    @property
    def installed(self) -> str | None:
        """Its version on this machine, found without importing it."""
        if find_spec(self.module) is None:
            return None
        try:
            return version(self.package)
        except PackageNotFoundError:
            return None


FLAVOURS = {
    "rtx": Flavour("rtx", "tensorrt_rtx", "tensorrt-rtx", "pip install 'dflash-compile[rtx]'", "1.7.1.116"),
    "trt": Flavour(
        "trt", "tensorrt", "tensorrt", "install NVIDIA's TensorRT 11 with its Python wheel", "11.0", anywhere=False
    ),
}


def check_device(flavour: Flavour, architectures: Sequence[str]) -> None:
    """Raise `IncompatibleError` where `flavour` compiles for the GPU it runs on and this machine has none, or another
    than `architectures` ask for.
    """
    if flavour.anywhere:
        return
    found = _own_arch()
    if found is None or list(architectures) != [found]:
        raise IncompatibleError(
            f"{flavour.package} cannot compile for {', '.join(architectures)} here",
            where=f"--flavour {flavour.name}",
            why=(
                "it compiles for the GPU it runs on, and"
                f" {'there is none here' if found is None else f'that is {found}'}"
            ),
            fix="give --flavour rtx, which needs no GPU, or build on a machine with that GPU"
            + ("" if found is None else f", or give --arch {found}"),
        )


def _own_arch() -> str | None:
    """Of this machine's first GPU: sm89. None without one, or without a driver or cuda-core to ask."""
    try:
        return "sm{}{}".format(*import_module("cuda.core").Device().compute_capability)
    except Exception:  # the library raises its driver's errors as they are
        return None


def choose_flavour(name: str | None) -> Flavour:
    """The flavour called `name`, or by default the one that is installed, RTX first.

    Raises `UsageError` for an unknown name and `IncompatibleError` where there is none, with the command that installs
    it.
    """
    if name is not None and name not in FLAVOURS:
        raise UsageError(f"unknown flavour {name!r}", where="--flavour", fix=f"choose one of {', '.join(FLAVOURS)}")
    wanted = list(FLAVOURS.values()) if name is None else [FLAVOURS[name]]
    found = next((flavour for flavour in wanted if flavour.installed), None)
    if found is None:
        first = wanted[0]
        raise IncompatibleError(
            f"{first.package} is not installed here",
            where="--backend tensorrt",
            why="it compiles the engines; a GPU is not needed for that",
            fix=first.install,
        )
    return found
