"""Weights in files, handed to TensorRT's parser whose mapped pages are released while it builds. Runs in the
worker process.

The parser maps the file too, but keeps every page it has read: one copy of the weights more, beside the builder's own
and the plan's.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

External = tuple[str, str, int, int]
"""of an initializer: name, file, offset and length in bytes"""

_SECONDS = 0.02


class MappedFile:
    """A file in memory, for reading."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # A private mapping, because ctypes gives addresses of writable memory only. Nobody writes: pages that are
            # released are read again.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def release_pages(self) -> None:
        """Forget the pages that were read, where the system can: it keeps them as long as it has room."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def parse(parser: Any, onnx: Path, weights: Sequence[External]) -> tuple[bool, list[MappedFile]]:
    """Whether `parser` understands the graph, and the files that must stay mapped until the engine is built."""
    if not weights:
        return parser.parse_from_file(str(onnx)), []
    if not parser.load_model_proto(onnx.read_bytes()):
        return False, []
    files = {name: MappedFile(Path(name)) for _, name, _, _ in weights}
    for name, file, offset, length in weights:
        if not parser.load_initializer(name, files[file].address + offset, length):
            return False, []
    return parser.parse_model_proto(), list(files.values())


@contextmanager
def releasing_pages(files: Sequence[MappedFile]) -> Iterator[None]:
    """While inside, pages of `files` stay in memory only for as long as they are read."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS):
            for file in files:
                file.release_pages()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
