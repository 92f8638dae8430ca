"""Load a bundle and generate from it. This package never imports the tools that built it.

from dflash_compile.runtime import load

with load("bundle") as session:
    for piece in session.generate("Why is the sky blue?"):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["load"]

if TYPE_CHECKING:
    from .loading import load
else:

    def __getattr__(name):
        if name != "load":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .loading import load  # not before it is asked for: `import dflash_compile.runtime` stays instant

        return load
