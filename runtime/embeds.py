"""Rows that an app computes itself, of pictures or sounds, in place of embedded tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import IncompatibleError, UsageError

Embeds = Iterable[tuple[int, Any]]
"""(start, rows) pairs: rows are float32 [n, hidden], an array or whatever numpy makes one of, for the tokens from
`start` on"""


@dataclass(frozen=True)
class Span:
    """Given rows side by side."""

    start: int
    rows: NDArray[np.float32]
    """[n, hidden]"""

    @property
    def end(self) -> int:
        return self.start + len(self.rows)


def check_embeds(embeds: Embeds, prompt: int, hidden: int | None) -> tuple[Span, ...]:
    """`embeds` of a prompt of so many tokens as spans in order, their rows copied; `hidden` is the width that the
    target takes, None where it takes none.

    Raises `UsageError` for rows that are no finite float32 [n, hidden], lie outside the prompt or overlap,
    `IncompatibleError` where the target takes none.
    """
    pairs = _pairs(embeds)
    if pairs and hidden is None:
        raise IncompatibleError(
            "this bundle's target takes no inputs_embeds",
            why="only those of multimodal checkpoints do, in bundles for ONNX Runtime",
            fix="leave inputs_embeds out; if the checkpoint is multimodal, build it again with --backend onnxruntime",
        )
    spans = sorted((_span(start, rows, prompt, hidden) for start, rows in pairs), key=lambda span: span.start)
    for before, after in pairwise(spans):
        if after.start < before.end:
            raise UsageError(
                f"inputs_embeds overlap at position {after.start}",
                why=f"rows from {before.start} on reach {before.end}",
                fix="give every position once",
            )
    return tuple(spans)


def within(spans: Sequence[Span], position: int, rows: int) -> list[Span]:
    """What of `spans` falls into the `rows` rows at `position`, counted from there."""
    end = position + rows
    cut = [(max(span.start, position), min(span.end, end), span) for span in spans]
    return [
        Span(first - position, span.rows[first - span.start : last - span.start])
        for first, last, span in cut
        if first < last
    ]


def _pairs(embeds: Embeds) -> list[tuple[Any, Any]]:
    try:
        return [(start, rows) for start, rows in embeds]
    except (TypeError, ValueError) as fault:
        raise UsageError(
            "inputs_embeds are no (start, rows) pairs", why=str(fault), fix="give a list, as in [(7, rows)]"
        ) from fault


def _span(start: Any, rows: Any, prompt: int, hidden: int | None) -> Span:
    if not isinstance(start, Integral) or isinstance(start, bool):
        raise UsageError(
            f"inputs_embeds start at {start!r:.60}",
            why="a position is a whole number",
            fix="count the prompt's tokens from 0",
        )
    try:
        found = np.asarray(rows)
    except Exception as fault:  # whatever an array of another library raises: on a device, or still in a graph
        raise UsageError(
            "inputs_embeds cannot be read as an array", why=str(fault), fix="move it to the CPU and give .numpy()"
        ) from fault
    if found.dtype != np.float32:
        raise UsageError(
            f"inputs_embeds are {found.dtype}", why="float32 is needed", fix="convert them: rows.astype(numpy.float32)"
        )
    if found.ndim != 2 or found.shape[1] != hidden or not len(found):
        raise UsageError(
            f"inputs_embeds have the shape {list(found.shape)}",
            why=f"[n, {hidden}] is needed: a row for each token",
            fix="leave out the axis of the batch",
        )
    if not np.isfinite(found).all():
        raise UsageError("inputs_embeds hold numbers that are not finite", fix="look at what the encoder gives")
    span = Span(int(start), np.array(found, order="C"))
    if span.start < 0 or span.end > prompt:
        raise UsageError(
            f"inputs_embeds are for positions {span.start} to {span.end - 1}",
            why=f"the prompt has {prompt} tokens, from 0 on",
            fix="put a placeholder token into the prompt for every row",
        )
    return span
