"""A tokenizer's file, looked at before the library reads it: some of what it takes ends the process, or never ends.

Its parser of precompiled maps reserves as much memory as the map says, and a failure of that is no exception.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

MOST_PARTS = 1000
"""in the pipeline; published tokenizers have about ten"""
MOST_GROWTH = 1000
"""characters that one may become"""
MOST_PATTERN = 100_000
"""characters of a pattern or of what takes its place"""
_DEEPEST = 32


class _File(msgspec.Struct):
    """What runs around the model, which has no such traps."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    decoder: Any = None
    added_tokens: msgspec.Raw = msgspec.Raw()


def check_tokenizer_file(content: bytes) -> None:
    """Raises `ValueError` saying what the library must not read."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except RecursionError as fault:
        raise ValueError("it is nested without end") from fault
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        parts = list(_parts(getattr(file, name), 0))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"its {name} has {len(parts)} parts")
        growth = 1.0
        for part in parts:
            growth *= _checked(part)
        if growth > MOST_GROWTH:
            raise ValueError(f"its {name} makes one character into {growth:.3g}")


def _parts(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _DEEPEST:
        raise ValueError("its parts are nested without end")
    if isinstance(value, list):
        for entry in value:
            yield from _parts(entry, depth + 1)
    elif isinstance(value, dict):
        if part := _typed(value):
            yield part
        for entry in value.values():
            yield from _parts(entry, depth + 1)


def _typed(value: dict[str, Any]) -> dict[str, Any]:
    """`value` as a part; files of old leave out the type, which the library then finds by the other keys."""
    if "type" in value:
        return value
    kinds = {"content": "Replace", "prepend": "Prepend", "precompiled_charsmap": "Precompiled"}
    found = next((kind for key, kind in kinds.items() if key in value and (key != "content" or "pattern" in value)), "")
    return {**value, "type": found} if found else {}


def _checked(part: dict[str, Any]) -> float:
    """By how much `part` makes a text longer, at most."""
    match part:
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            _check_map(charsmap)
        case {"type": "Replace" | "Split", "pattern": dict(pattern)}:
            found, content = str(next(iter(pattern.values()), "")), str(part.get("content", ""))
            if max(len(found), len(content)) > MOST_PATTERN:
                raise ValueError("it has a pattern, or what takes its place, without end")
            if not found:
                raise ValueError("it replaces nothing by something")
            if part["type"] == "Replace":
                shortest = len(found) if "String" in pattern else 1
                return max(1.0, len(content) / shortest)
        case {"type": "Prepend", "prepend": ""}:
            raise ValueError("it puts nothing before a text")
        case {"type": "FixedLength", "length": 0}:
            raise ValueError("it cuts a text into pieces of no length")
        case {"type": "Strip", "stop": int(stop), "start": int(start)} if max(start, stop) > MOST_PATTERN:
            raise ValueError("it strips characters without end")
    return 1.0


def _check_map(text: str) -> None:
    """A map is the size of a table in bytes, the table, and texts in UTF-8 that it points into."""
    try:
        data = base64.b64decode(text, validate=True)
        size = int.from_bytes(data[:4], "little")
        whole = len(data) >= 4 and size % 4 == 0 and 4 <= size <= len(data) - 4
        data[4 + size :].decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        whole = False
    if not whole:
        raise ValueError("its precompiled map is damaged")
