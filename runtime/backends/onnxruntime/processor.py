"""What kind of processor this is: two machines that answer alike run the same kernels."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# The lines of Linux's account that say which instructions there are; the others differ from core to core and from
# moment to moment.
_TELLING = frozenset(
    "vendor_id|cpu family|model|model name|stepping|flags|CPU implementer|CPU architecture|CPU variant|CPU"
    " part|Features|isa|uarch|cpu".split("|")
)


def processor() -> tuple[str, ...]:
    """Architecture, and the model and instruction sets of every kind of core, as far as the system tells."""
    return (
        platform.system(),
        platform.machine(),
        platform.processor(),
        os.environ.get("PROCESSOR_IDENTIFIER", ""),
        *sorted(_cores()),
    )


def _cores() -> set[str]:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    cores, facts = set(), list[str]()
    for line in [*lines, ""]:
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _TELLING:
            facts.append(f"{name}: {value}")
        elif not name and facts:
            cores.add("\n".join(facts))
            facts = []
    return cores
