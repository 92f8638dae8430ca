"""Texts that a target's weights are rounded for: token sequences, and what the bundle records of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_compile.export.checkpoint import TargetCheckpoint
from dflash_compile.runtime.errors import UsageError

Sequences = list[list[int]]
"""token ids"""

TOKENS = 12_800
"""read at most: four times as many gain nothing"""
_LENGTH = 256
"""tokens of a piece of a text"""


@dataclass(frozen=True)
class Calibration:
    """Where calibration texts come from; they are only made where a weight is rounded for them."""

    record: str
    """names them in the bundle: equal records, equal texts"""
    sequences: Callable[[TargetCheckpoint], Sequences]
    """makes them, for the target they are for"""


def from_file(path: Path) -> Calibration:
    """The first `TOKENS` tokens of a text file, in UTF-8. Raises `UsageError` for a file that cannot be read or holds next to nothing."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("the calibration text cannot be read", where=str(path), why=str(error), fix="give a plain text file in UTF-8") from error
    if len(text.split()) < _LENGTH:
        raise UsageError(
            f"the calibration text has {len(text.split())} words",
            where=str(path),
            why="statistics of so little text fit it and nothing else",
            fix="give some thousand words of what the target will read and write",
        )
    return Calibration(f"text {hashlib.sha256(data).hexdigest()[:16]}", lambda target: list(_pieces(target, text)))


def _pieces(target: TargetCheckpoint, text: str) -> Iterator[list[int]]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_str(target.text.tokenizer_json.decode()).encode(text, add_special_tokens=False).ids[:TOKENS]
    length = min(_LENGTH, target.spec.max_positions)
    for start in range(0, len(ids), length):
        yield ids[start : start + length]
