"""Engines on ONNX Runtime: one target graph with a free row count, and the drafter's inject and draft graphs over one
draft cache.

The target writes its taps where inject reads them; logits stay where they are written and only their argmax leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...backend import EngineOptions, refuse_loop
from ...bundle.manifest import PREFILL_ROWS, GraphRecord, ModelRecord
from ...bundle.read import Bundle
from ...bundle.vocabulary import draft_token_ids
from ...embeds import Span
from ...engines import DrafterEngine, Engines, TargetEngine
from ...errors import BundleError, UsageError
from .graph import Buffer, Graph, View
from .library import INSTALL, choose_provider, import_library, installed, open_engine, providers, session_options
from .packed import PackedEngines

__all__ = ["INSTALL", "installed", "open_engines"]


def open_engines(bundle: Bundle, options: EngineOptions) -> Engines:
    """Target and drafter of `bundle`. See `Backend`."""
    refuse_loop(options)
    library = import_library()
    device, notes = choose_provider(library, options)
    # What the CPU's kernels want is known only here, and nothing of it serves another device.
    packed = PackedEngines(library, bundle, options.cache if device == "cpu" else None, options.threads)
    maker = _Maker(library, bundle, device, options.threads, packed)
    target = _Target(maker)
    return Engines(target, _Drafter(maker), (*notes, *packed.notes))


class _Maker:
    """Makes graphs and buffers of one bundle on one device."""

    def __init__(self, library: Any, bundle: Bundle, device: str, threads: int | None, packed: PackedEngines) -> None:
        self.manifest = bundle.manifest
        self.library, self.device = library, device
        self.draft_ids = draft_token_ids(bundle)
        self._bundle, self._threads, self._packed = bundle, threads, packed

    def graph(self, model: ModelRecord, role: str) -> Graph:
        record = self._record(model, role)
        file = self._bundle.file(record.file)
        return Graph(self._packed.session(record) or self._open(file), file, record)

    def buffer(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        return Buffer(self.library, self.device, shape, dtype)

    def _open(self, file: Path) -> Any:
        return open_engine(
            self.library, file, session_options(self.library, self._threads), providers(self.library, self.device)
        )

    def _record(self, model: ModelRecord, role: str) -> GraphRecord:
        for graph in model.graphs:
            if graph.role == role and graph.rows is None:
                return graph
        raise BundleError(
            f"{model.name} has no {role} graph with a free row count",
            why="ONNX Runtime bundles have one",
            fix="build the bundle again",
        )


class _Target(TargetEngine):
    """Logits of every row to verify; of the last one, `min_verify_rows` times, to prefill.

    The head, too, may round otherwise on one row: asked for as many as the narrowest verify has, it gives the same
    choice after a prompt as a verify of the same row would.
    """

    reports_logits = True

    def __init__(self, maker: _Maker) -> None:
        manifest = maker.manifest
        block, narrowest = manifest.pairing.block, manifest.requires.exact_width
        self._graph: Graph | None = maker.graph(manifest.target, "target")
        # Products of four bits take rows two by two: the last of an odd number rounds as a single row does, as narrower
        # calls do at every precision.
        row_multiple = narrowest
        max_rows = self._graph.narrowed(
            -(-max(min(PREFILL_ROWS, manifest.context), block) // row_multiple) * row_multiple
        )
        ports = self._graph.ports
        hidden = _size(ports["embeds"].shape[2]) if "embeds" in ports else None
        super().__init__(
            context=manifest.context,
            vocab=manifest.target.vocab,
            max_rows=max_rows,
            min_verify_rows=narrowest,
            row_multiple=row_multiple,
            embeds=hidden,
        )
        self._width = _size(ports["taps"].shape[2])
        self._caches = self._graph.cache_buffers(maker.library, maker.device)
        _check_length(self._graph, self._caches, manifest.context)
        self._tokens = maker.buffer((self.max_rows,), "int32")
        self._position = maker.buffer((1,), "int32")
        self._last = maker.buffer((narrowest,), "int32")
        self._every = maker.buffer((self.max_rows,), "int32")
        self._every.write(range(self.max_rows))
        self._logits = maker.buffer((self.max_rows, self.vocab), ports["logits"].dtype)
        self._taps = maker.buffer((self.max_rows, self._width), ports["taps"].dtype)
        self._rows_in = None if hidden is None else _RowsIn(maker, self.max_rows, hidden)
        self._kept: dict[tuple[int, ...], int] = {}
        """rows of taps before those of a call, as it is bound"""

    def close(self) -> None:
        self._graph = None
        self._caches = {}

    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        self._last.write([rows - 1] * self.min_verify_rows)
        return self._run(tokens, position, self._last, self.min_verify_rows, 0)[0]

    def _embeds_impl(self, tokens: Sequence[int], rows: int, position: int, embeds: Sequence[Span]) -> int:
        if self._rows_in is None:
            return super()._embeds_impl(tokens, rows, position, embeds)
        self._rows_in.write(len(tokens), embeds)
        self._last.write([rows - 1] * self.min_verify_rows)
        return self._run(tokens, position, self._last, self.min_verify_rows, 0, given=True)[0]

    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]:
        return self._run(block, position, self._every, len(block), keep)

    def _taps_impl(self) -> Buffer:
        return self._taps

    def _logits_impl(self, row: int) -> NDArray[np.float32]:
        row_of: NDArray[np.float32] = self._logits.read((row + 1, self.vocab))[row].astype(np.float32, copy=False)
        return row_of

    def _run(
        self, tokens: Sequence[int], position: int, pick: Buffer, picked: int, keep: int, given: bool = False
    ) -> list[int]:
        graph = _opened(self._graph)
        rows = len(tokens)
        key, taps = (
            (rows, picked, pick is self._every, given),
            (self._taps.behind(keep * self._width), (1, rows, self._width)),
        )
        if not graph.prepared(key):
            graph.bind(
                key,
                {
                    "tokens": (self._tokens, (1, rows)),
                    "position": (self._position, (1,)),
                    "pick": (pick, (picked,)),
                    **self._embeds_views(rows, given),
                },
                {"logits": (self._logits, (1, picked, self.vocab)), "taps": taps},
                self._caches,
            )
        elif (
            self._kept[key] != keep
        ):  # all else stays where it was: to bind every port of every layer takes a hundred times as long
            graph.move(key, "taps", taps)
        self._kept[key] = keep
        self._tokens.write(tokens)
        self._position.write((position,))
        graph.run(key)
        return _choices(self._logits.read((picked, self.vocab)))

    def _embeds_views(self, rows: int, given: bool) -> dict[str, View]:
        return {} if self._rows_in is None else self._rows_in.views(rows, given)


class _RowsIn:
    """Memory for rows in place of embedded tokens. Calls that have none read flags that are never written."""

    def __init__(self, maker: _Maker, max_rows: int, hidden: int) -> None:
        self._hidden = hidden
        self._rows = maker.buffer((max_rows, hidden), "float32")
        self._given, self._none = maker.buffer((max_rows,), "int32"), maker.buffer((max_rows,), "int32")

    def write(self, count: int, embeds: Sequence[Span]) -> None:
        """The rows of `embeds` for a call of `count` rows."""
        rows, given = np.zeros((count, self._hidden), np.float32), np.zeros(count, np.int32)
        for span in embeds:
            rows[span.start : span.end] = span.rows
            given[span.start : span.end] = 1
        self._rows.write(rows.reshape(-1))
        self._given.write(given)

    def views(self, rows: int, given: bool) -> dict[str, View]:
        """Ports of the target's graph for a call of `rows` rows, some of which are `given` or none."""
        return {
            "embeds": (self._rows, (1, rows, self._hidden)),
            "given": (self._given if given else self._none, (1, rows)),
        }


class _Drafter(DrafterEngine):
    reports_confidence = True

    def __init__(self, maker: _Maker) -> None:
        pairing, model = maker.manifest.pairing, maker.manifest.drafter
        self._inject: Graph | None = maker.graph(model, "inject")
        self._draft: Graph | None = maker.graph(model, "draft")
        self._caches = self._draft.cache_buffers(maker.library, maker.device)
        _check_length(self._draft, self._caches, maker.manifest.context)
        super().__init__(
            context=maker.manifest.context,
            block=pairing.block,
            max_rows=self._inject.narrowed(max(PREFILL_ROWS, pairing.block)),
        )
        self._mask_id = pairing.mask_id
        self._ids = maker.draft_ids
        self._width = _size(self._inject.ports["taps"].shape[2])
        self._vocab = _size(self._draft.ports["logits"].shape[2])
        self._position = maker.buffer((1,), "int32")
        self._block = maker.buffer((pairing.block,), "int32")
        self._block.write([pairing.mask_id] * pairing.block)
        self._logits = maker.buffer((pairing.block - 1, self._vocab), self._draft.ports["logits"].dtype)
        self._drafted, self._chosen, self._odds = (
            np.empty((0, self._vocab)),
            list[int](),
            np.empty(self._vocab, np.float32),
        )

    def close(self) -> None:
        self._inject = self._draft = None
        self._caches = {}

    def _inject_impl(self, memory: Buffer, rows: int, position: int) -> None:
        graph = _opened(self._inject)
        key = (memory.address, rows)
        if not graph.prepared(key):
            graph.bind(
                key, {"taps": (memory, (1, rows, self._width)), "position": (self._position, (1,))}, {}, self._caches
            )
        self._position.write((position,))
        graph.run(key)

    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]:
        graph = _opened(self._draft)
        key = (width,)
        if not graph.prepared(key):
            graph.bind(
                key,
                {"block": (self._block, (1, width)), "position": (self._position, (1,))},
                {"logits": (self._logits, (1, width - 1, self._vocab))},
                self._caches,
            )
        # Row 0 alone changes: the masks behind it were written once.
        self._block.write((anchor,))
        self._position.write((position,))
        graph.run(key)
        # Not by nodes of the graph: argmax there takes two to four times as long as numpy's (docs/benchmarks.md).
        self._drafted = self._logits.read((width - 1, self._vocab))
        self._chosen = _choices(self._drafted)
        return list(self._chosen) if self._ids is None else [self._ids[row] for row in self._chosen]

    def _confidence_impl(self, slot: int) -> float:
        """Softmax of the logits at the choice, over the tokens that the drafter can propose; 0 where the largest is
        infinite or not a number.
        """
        row, odds = self._drafted[slot], self._odds
        top = row[self._chosen[slot]]
        if not isfinite(top):
            return 0.0
        with np.errstate(under="ignore"):
            np.subtract(row, top, out=odds, dtype=np.float32)
            return 1 / float(np.add.reduce(np.exp(odds, out=odds)))


def _choices(logits: NDArray[Any]) -> list[int]:
    """Argmax of each row; the lowest id where several are equal."""
    # A row at a time: numpy's argmax over the last axis of a matrix is several times slower.
    return [int(row.argmax()) for row in logits]


def _opened(graph: Graph | None) -> Graph:
    if graph is None:
        raise UsageError(
            "this session is closed", why="its engines and their memory are gone", fix="load the bundle again"
        )
    return graph


def _size(dimension: int | str) -> int:
    if not isinstance(dimension, int):
        raise BundleError(
            f"the width {dimension!r} is not a number", why="only row counts may be free", fix="build the bundle again"
        )
    return dimension


def _check_length(graph: Graph, caches: dict[str, Buffer], context: int) -> None:
    """Caches that are no rings hold at least `context` rows: [1, kv, L, head_dim]."""
    for name, buffer in caches.items():
        if len(buffer.shape) != 4 or (buffer.shape[2] < context and name not in graph.rings):
            raise BundleError(
                f"the cache {name} has the shape {list(buffer.shape)}, too short for a context of {context}",
                fix="build the bundle again",
            )
