"""Encoding in tiles that stay in a core's cache, over as many cores as torch takes.

A tile is a few whole rows: an encoding makes the same bytes of them as of all rows at once, several times sooner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from types import TracebackType
from typing import Self

import numpy as np
import torch

from .encoding import Array, Encoding

TILE_NUMBERS = 1 << 17
"""of a tile: half a MB in float32, the fastest on the processors that were measured"""


@dataclass(frozen=True)
class Tile:
    """Some rows of a tensor, encoded."""

    rows: int
    parts: tuple[Array, ...]
    """the rows of each part"""
    finite: bool
    """whether every number read was"""
    finite_parts: bool
    """whether every float stored is"""


class TileEncoder:
    """Encodes chunks of rows, tile by tile. A context manager: threads end with it."""

    def __init__(self) -> None:
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "encode")

    def __enter__(self) -> Self:
        if self._threads > 1:
            # One after the other in every worker: torch's own threads under each would only wait for each other. The
            # number is that of the calling thread, and what threads to come start with.
            barrier = Barrier(self._threads)
            list(self._pool.map(_single_threaded, [barrier] * self._threads))
            torch.set_num_threads(self._threads)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def encode(self, encoding: Encoding, chunks: Iterable[torch.Tensor]) -> Iterator[Tile]:
        """Every tile of `chunks` [n, …] in order. The next chunk is read while one is encoded."""
        if not encoding.TILED or self._threads == 1:
            for chunk in chunks:
                yield from (_encoded(encoding, rows) for rows in tiles(chunk, encoding.TILED))
            return
        before: list[Future[Tile]] = []
        for chunk in chunks:
            now = [self._pool.submit(_encoded, encoding, rows) for rows in tiles(chunk)]
            yield from (one.result() for one in before)
            before = now
        yield from (one.result() for one in before)


def tiles(rows: torch.Tensor, tiled: bool = True) -> tuple[torch.Tensor, ...]:
    """`rows` [n, …] cut into pieces of at most `TILE_NUMBERS`, one row at least; in one piece where not `tiled`."""
    if not tiled:
        return (rows,)
    cut: tuple[torch.Tensor, ...] = rows.split(max(1, TILE_NUMBERS // math.prod(rows.shape[1:])))
    return cut


def _encoded(encoding: Encoding, rows: torch.Tensor) -> Tile:
    # Quantised, a NaN becomes some number like any other: afterwards nothing would show where wrong text comes from.
    finite = bool(rows.isfinite().all())
    parts = tuple(np.ascontiguousarray(part) for part in encoding.encode(rows))
    floats = (part for part in parts if part.dtype.kind == "f")
    return Tile(len(rows), parts, finite, all(bool(np.isfinite(part).all()) for part in floats))


def _single_threaded(barrier: Barrier) -> None:
    torch.get_num_threads()  # a thread's first question sets its number to the general one
    torch.set_num_threads(1)
    barrier.wait()
