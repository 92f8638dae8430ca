"""What the file system says of a file: enough to see whether somebody has written to it since."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

# Two writes within one tick of the file system's clock leave the same times; some clocks tick every two seconds.
_SETTLED_NS = 2_000_000_000


class Stamp(msgspec.Struct, frozen=True, array_like=True):
    """Size, times in nanoseconds, and which file of which device."""

    size: int
    modified: int
    changed: int
    """unlike `modified` no program can set it back"""
    inode: int
    device: int

    @property
    def settled(self) -> bool:
        """Whether its times lie far enough back that another write would show."""
        return max(self.modified, self.changed) + _SETTLED_NS < time.time_ns()


TRUSTED = os.name == "posix"
"""elsewhere a file's times do not show every write"""


def stamp(path: Path) -> Stamp:
    """The stamp of the file at `path`. Raises `OSError`."""
    found = path.stat()
    return Stamp(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
