"""What one rendering of a chat template may take: steps, time, and characters made."""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from typing import Any, NoReturn

from jinja2.utils import Namespace

from .errors import BundleError

MOST_STEPS = 3_000_000
"""blocks begun, items walked over, functions and filters called"""
MOST_SECONDS = 5.0
"""of this thread's own time"""
LARGEST = 32 << 20
"""characters of one text, or bytes of one number or list and all in it; a prompt of a million tokens has 5 million"""
MOST_MADE = 256 << 20
"""characters and list items made in all"""
MOST_NUMBER = 1 << 20
"""as an argument: widths, counts"""
_LARGEST_INT = 4096
"""bytes"""
_DEEPEST = 200
_ITEM = 8
"""bytes that a place in a list counts as"""


def refuse(what: str) -> NoReturn:
    """Raise the error of a template that is out of bounds."""
    raise BundleError(
        "the chat template is out of bounds",
        why=what,
        fix="generate with raw=True, and do not trust this bundle: no published template comes near",
    )


def weight_of_int(value: int) -> int:
    """Bytes of a whole number."""
    return value.bit_length() // 8 + 1


class Budget:
    """Of one rendering. Every method raises `BundleError` where it is used up."""

    def __init__(self) -> None:
        self._steps = self._made = 0
        self._looked = 0
        self._end = time.thread_time() + MOST_SECONDS
        self._known: dict[int, tuple[Any, int]] = {}
        """weights by identity, and the values themselves, so that no identity is used twice"""

    def step(self, count: int = 1) -> None:
        """Something was done, `count` times."""
        self._steps += count
        if self._steps > MOST_STEPS:
            refuse(f"it takes more than {MOST_STEPS} steps")
        if self._steps - self._looked > 500:
            self._looked = self._steps
            if time.thread_time() > self._end:
                refuse(f"it takes more than {MOST_SECONDS:g} seconds")

    def fits(self, size: int) -> None:
        """Something of `size` characters or bytes is about to be made."""
        if size > LARGEST:
            refuse(f"it makes something of more than {LARGEST >> 20} MiB")

    def fits_number(self, size: int) -> None:
        """A whole number of `size` bytes is about to be computed."""
        if size > _LARGEST_INT:
            refuse("it computes numbers without end")

    def keep(self, value: Any) -> Any:
        """`value`, which was made."""
        if isinstance(value, str | bytes | list | tuple | dict):
            self.fits(self.weight(value))
            self._made += len(value)
            if self._made > MOST_MADE:
                refuse(f"it makes more than {MOST_MADE >> 20} MiB in all")
        return value

    def weight(self, value: Any, depth: int = 0) -> int:
        """Characters, or bytes, of `value` written out with everything in it."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return weight_of_int(value)
        inside = _inside(value)
        if inside is None:
            return _ITEM
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        if depth > _DEEPEST:
            refuse(f"something is nested more than {_DEEPEST} deep")
        self.step()
        total = _ITEM
        for item in inside:
            total += _ITEM + self.weight(item, depth + 1)
        self.fits(total)
        if not isinstance(value, Namespace):  # the one thing that a template may change
            self._known[id(value)] = (value, total)
        return total


def _inside(value: Any) -> list[Any] | None:
    """What is written out along with `value`; None where that is nothing."""
    if isinstance(value, Namespace):
        value = value._Namespace__attrs  # as its `repr` does
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
        return list(value)
    return None
