"""Texts that a target's weights are rounded for: token sequences, and what the bundle records of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import UsageError

if TYPE_CHECKING:
    from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint

Sequences = list[list[int]]
"""token ids"""

TOKENS = 12_800
"""read at most: four times as many gain nothing"""
_LENGTH = 256
"""tokens of a piece of a text"""
_LEAST = 1500
"""characters of a text: statistics of less fit it and nothing else"""


@dataclass(frozen=True)
class Calibration:
    """Where calibration texts come from."""

    name: str
    sequences: Callable[[TargetCheckpoint], Sequences]
    """makes them, for the target they are for"""

    def for_target(self, target: TargetCheckpoint) -> Calibration:
        """The same with its texts made, and a name that tells them from others: equal names, equal texts."""
        made = self.sequences(target)
        return Calibration(f"{self.name} {hashlib.sha256(repr(made).encode()).hexdigest()[:12]}", lambda _: made)


def from_file(path: Path) -> Calibration:
    """The first `TOKENS` tokens of a text file, in UTF-8.

    Raises `UsageError` for a file that cannot be read or holds next to nothing.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            "the calibration text cannot be read",
            where=str(path),
            why=str(error),
            fix="give a plain text file in UTF-8",
        ) from error
    if len(text) < _LEAST:
        raise UsageError(
            f"the calibration text has {len(text)} characters",
            where=str(path),
            why=f"what is learned of fewer than {_LEAST} fits them and nothing else",
            fix="give some pages of what the target will read and write",
        )
    return Calibration("text", lambda target: list(_pieces(target, text)))


def _pieces(target: TargetCheckpoint, text: str) -> Iterator[list[int]]:
    """Pieces of at most `_LENGTH` tokens, each behind the token that texts of this target begin with, if there is
    one.
    """
    from tokenizers import Tokenizer

    tokenizer, first = Tokenizer.from_str(target.text.tokenizer_json.decode()), target.text.bos_token
    begin = [] if first is None or (known := tokenizer.token_to_id(first)) is None else [known]
    ids, length = (
        tokenizer.encode(text, add_special_tokens=False).ids[:TOKENS],
        min(_LENGTH, target.spec.max_positions) - len(begin),
    )
    for start in range(0, len(ids), length):
        yield begin + ids[start : start + length]
