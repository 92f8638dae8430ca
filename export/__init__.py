"""Opening checkpoints, pairing them, and tracing them into weightless graphs.

Importing the package costs nothing: torch and transformers are loaded by the first function that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .opening import open_drafter, open_target
    from .pairing import Pairing, pair

__all__ = ["Pairing", "open_drafter", "open_target", "pair"]

_HOME = {"Pairing": "pairing", "open_drafter": "opening", "open_target": "opening", "pair": "pairing"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
