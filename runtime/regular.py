"""Reading files that others made: regular ones only, and no more than they may hold.

A pipe in a file's place would wait for ever, and a device could be read without end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MANIFEST_BYTES = 64 << 20
TEXT_BYTES = 512 << 20
"""of a tokenizer, a chat template, a configuration: the largest published tokenizer has 35 MB"""


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of the file at `path`. Raises `OSError` also where it is no regular file or has more than `most`."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        file = open(descriptor, "rb")  # noqa: PTH123, SIM115  (a descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    with file:
        content = file.read(min(found.st_size, most) + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return content


def require_regular(path: Path) -> None:
    """Raises `OSError` where `path` leads to no regular file, before anybody opens it."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
