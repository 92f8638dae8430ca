"""The header of a GGUF file, walked before it is read: every length and count is held against the file's own size.

The reader that comes with `gguf` makes a list of whatever count it finds.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from dflash_compile.runtime.regular import require_regular

STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""bytes of GGUF's other types of value"""
MOST_ENTRIES = 1 << 16
"""metadata keys, and tensors"""
MOST_ITEMS = 1 << 23
"""in all arrays together; the largest published tokenizer has about a million"""
MOST_AXES = 8


def check_header(path: Path) -> None:
    """Raises `ValueError` saying what cannot be, and `OSError`. Files that do not start as GGUF are left alone."""
    require_regular(path)
    if path.stat().st_size < 24:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] == b"GGUF":
            _Walk(data).header()


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at, self._items = data, 4, 0
        self._order = "<" if data[4] or data[5] else ">"

    def header(self) -> None:
        self._number("I")
        tensors, entries = self._number("Q"), self._number("Q")
        if max(tensors, entries) > MOST_ENTRIES:
            raise ValueError(f"it says that it has {tensors} tensors and {entries} metadata keys")
        for _ in range(entries):
            self._string()
            self._value(self._number("I"))
        for _ in range(tensors):
            self._string()
            if (axes := self._number("I")) > MOST_AXES:
                raise ValueError(f"a tensor has {axes} axes")
            self._skip(8 * axes + 12)

    def _value(self, kind: int) -> None:
        if kind == STRING:
            self._string()
        elif kind == ARRAY:
            inside, count = self._number("I"), self._number("Q")
            self._items += count
            if inside == ARRAY:
                raise ValueError("an array of arrays")
            if self._items > MOST_ITEMS:
                raise ValueError(f"its arrays have more than {MOST_ITEMS} items")
            if inside == STRING:
                for _ in range(count):
                    self._string()
            else:
                self._skip(self._size(inside) * count)
        else:
            self._skip(self._size(kind))

    def _size(self, kind: int) -> int:
        if kind not in SIZES:
            raise ValueError(f"a value of the unknown type {kind}")
        return SIZES[kind]

    def _string(self) -> None:
        self._skip(self._number("Q"))

    def _number(self, form: str) -> int:
        start = self._at
        self._skip(struct.calcsize(form))
        number: int = struct.unpack_from(f"{self._order}{form}", self._data, start)[0]
        return number

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise ValueError(f"its header ends {self._at - len(self._data)} bytes past the end of the file")
