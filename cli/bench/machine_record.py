"""The machine a benchmark ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

from dflash_compile.runtime.backend import find_backend

from ..machine import cores, memory_total
from .records import MachineRecord


def machine_record(backend: str) -> MachineRecord:
    """This machine, and the installed versions of `backend`'s library.

    Call it before the first run: it notes the load.
    """
    return MachineRecord(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=cores(),
        memory_bytes=memory_total(),
        python=platform.python_version(),
        tool=version("dflash-compile"),
        backend=dict(find_backend(backend).installed().versions),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or None,
    )
