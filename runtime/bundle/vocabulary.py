"""The token ids of a reduced draft head, as a bundle stores them."""

from __future__ import annotations

import numpy as np

from ..errors import BundleError
from ..foreign import foreign_errors
from ..regular import TEXT_BYTES, read_regular
from .read import Bundle

STORED = np.dtype("<i4")
_FIX = "build the bundle again"


def draft_token_ids(bundle: Bundle) -> list[int] | None:
    """Target token id of every row of the draft head, or None where the head is the target's whole one.

    Raises `BundleError` for a file of another length, and for ids that are no tokens of the target or that repeat.
    """
    record, vocab = bundle.manifest.pairing.draft_vocabulary, bundle.manifest.target.vocab
    if record is None:
        return None
    file = bundle.file(record.file)
    with foreign_errors(BundleError, "the draft vocabulary cannot be used", where=str(file), fix=_FIX):
        data = read_regular(file, TEXT_BYTES)
    if len(data) != record.size * STORED.itemsize:
        raise _fault(str(file), f"it has {len(data)} bytes, {record.size} tokens take {record.size * STORED.itemsize}")
    ids = np.frombuffer(data, STORED)
    if ids.min() < 0 or ids.max() >= vocab or len(np.unique(ids)) != len(ids):
        raise _fault(str(file), f"it must name different tokens below {vocab}")
    return [int(token) for token in ids]


def _fault(where: str, why: str) -> BundleError:
    return BundleError("the draft vocabulary cannot be used", where=where, why=why, fix=_FIX)
