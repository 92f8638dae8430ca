"""Load a bundle and generate from it. This package never imports the tools that built it.

from dflash_compile.runtime import load

with load("bundle") as session:
    for piece in session.generate("Why is the sky blue?"):
        print(piece, end="", flush=True)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from .bundle.files import Verify
    from .session import Session

__all__ = ["load"]


def load(
    path: str | Path,
    *,
    provider: Literal["cpu", "cuda"] = "cpu",
    threads: int | None = None,
    verify: Verify = "changed",
    device_loop: int | None = None,
) -> Session:
    """The bundle in directory `path`, checked, loaded and ready to generate.

    `threads` defaults to the cores this process may use. `verify="changed"` hashes every file that was written to since
    this machine hashed it last, `"full"` hashes every file, `"size"` compares sizes only. Hashes and packed weights are
    kept for the next time in a cache folder of the user; the environment variable DFLASH_COMPILE_CACHE names another
    one, or is `off`. `device_loop=N`, an experiment for TensorRT bundles, has the GPU do up to N cycles before the host
    sees their tokens. The session's `notes` say what is unusual, such as a device or a loop that was asked for and
    cannot be had. Raises `UsageError` where there is no bundle, `IncompatibleError` where this machine cannot run it
    (with the command that helps), `BundleError` where it is damaged.
    """
    # Imported here: `import dflash_compile.runtime` stays instant.
    from .loading import load_session

    return load_session(path, provider=provider, threads=threads, verify=verify, device_loop=device_loop)
