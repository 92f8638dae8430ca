"""Engines on TensorRT."""

from __future__ import annotations

from ..bundle.read import Bundle
from ..engines import Engines
from ..errors import IncompatibleError
from . import EngineOptions
from ._trt_library import INSTALL, installed

__all__ = ["INSTALL", "installed", "open_engines"]


def open_engines(bundle: Bundle, options: EngineOptions) -> Engines:
    """See `Backend`."""
    raise IncompatibleError(
        "this version compiles bundles for TensorRT and does not run them yet", where=str(bundle.root), fix="build with --backend onnxruntime"
    )
