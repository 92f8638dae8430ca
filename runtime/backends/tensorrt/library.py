"""TensorRT itself: is it here, and which of the two."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...backend import Installed

INSTALL = "pip install 'dflash-compile[rtx]'"

_DISTRIBUTIONS = ("tensorrt-rtx", "tensorrt")


def installed() -> Installed:
    """Version of TensorRT for RTX; of TensorRT where that is all there is."""
    for name in _DISTRIBUTIONS:
        try:
            return Installed({name: version(name)})
        except PackageNotFoundError:
            continue
    return Installed({})
