"""Memory of this process while something runs: peak, faults that reached the disk, and what lies in swap."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from .records import MemoryRecord

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class MemoryWatch:
    """Starts when it is made; `record` says what happened since.

    On Linux the peak is of that time, elsewhere of the whole process.
    """

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5", encoding="ascii")  # resets the peak (proc_pid_clear_refs(5))
        self._faults = _usage()[1]

    def record(self) -> MemoryRecord:
        """Until now."""
        peak, faults = _usage()
        since = faults - self._faults if faults is not None and self._faults is not None else None
        return MemoryRecord(
            peak_rss_bytes=_status("VmHWM") or peak, major_faults=since, swapped_bytes=_status("VmSwap")
        )


def _status(key: str) -> int | None:
    """A size in bytes from Linux's account of this process."""
    try:
        lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:")), None)


def _usage() -> tuple[int | None, int | None]:
    """Peak resident bytes and major faults of the process so far."""
    try:
        import resource
    except ImportError:  # Windows
        return None, None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), usage.ru_majflt
