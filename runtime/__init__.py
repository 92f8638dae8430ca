"""Load a bundle and generate from it. This package never imports the tools that built it.

from dflash_compile.runtime import load

with load("bundle") as session:
    for piece in session.generate("Why is the sky blue?"):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__all__ = ["Sampling", "load"]

if TYPE_CHECKING:
    from .loading import load
    from .sampling.parameters import Sampling
else:
    _HOME = {"load": ".loading", "Sampling": ".sampling.parameters"}

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # Not before it is asked for: `import dflash_compile.runtime` stays instant.
        return getattr(import_module(_HOME[name], __name__), name)
