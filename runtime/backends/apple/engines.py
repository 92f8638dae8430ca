"""Target and drafter on engines of static width that keep their cache as a state: padding, choice of width, taps.

Knows no library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...bundle.manifest import GraphRecord, Manifest, ModelRecord
from ...bundle.read import Bundle
from ...bundle.vocabulary import draft_token_ids
from ...engines import DrafterEngine, TargetEngine
from ...errors import BundleError, UsageError

Array = NDArray[Any]


class Functions(Protocol):
    """The entry points of one model, loaded, with the state they share."""

    def call(self, function: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run one on inputs of exactly its shapes; results by name."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...


class StaticTarget(TargetEngine):
    """prefill takes any number of rows up to its width; a block runs at the narrowest width that holds it."""

    def __init__(self, manifest: Manifest, functions: Functions) -> None:
        (self._prefill,) = _of_role(manifest.target, "prefill")[:1]
        self._widths = [*_of_role(manifest.target, "decode"), *_of_role(manifest.target, "verify")]
        super().__init__(
            context=manifest.context,
            vocab=manifest.target.vocab,
            max_rows=_rows(self._prefill),
            min_verify_rows=manifest.requires.exact_width,
        )
        self._functions: Functions | None = functions
        taps = next(port for port in self._prefill.outputs if port.name == "taps")
        self._taps = np.zeros((self.max_rows, int(taps.shape[2])), taps.dtype)

    def close(self) -> None:
        if self._functions is not None:
            self._functions.close()
        self._functions = None

    def _prefill_impl(self, tokens: Sequence[int], rows: int, position: int) -> int:
        results = self._run(self._prefill, tokens, position, {"valid": np.array([rows], np.int32)})
        self._taps[:rows] = results["taps"][0, :rows]
        return int(results["choices"][0, 0])

    def _verify_impl(self, block: Sequence[int], position: int, keep: int) -> Sequence[int]:
        results = self._run(_narrowest(self._widths, len(block)), block, position, {})
        self._taps[keep : keep + len(block)] = results["taps"][0, : len(block)]
        return [int(choice) for choice in results["choices"][0, : len(block)]]

    def _taps_impl(self) -> Array:
        return self._taps

    def _run(
        self, graph: GraphRecord, tokens: Sequence[int], position: int, more: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        # The padding lies past every real row: none of them sees it, and the cache is long enough for it.
        padded = np.zeros((1, _rows(graph)), np.int32)
        padded[0, : len(tokens)] = tokens
        return _opened(self._functions).call(
            _name(graph), {"tokens": padded, "position": np.array([position], np.int32), **more}
        )


class StaticDrafter(DrafterEngine):
    """Drafts run at the narrowest width that holds the block asked for; its first proposals are the answer."""

    def __init__(self, bundle: Bundle, functions: Functions) -> None:
        manifest = bundle.manifest
        self._injects = _of_role(manifest.drafter, "inject")
        self._drafts = _of_role(manifest.drafter, "draft")
        super().__init__(context=manifest.context, block=manifest.pairing.block, max_rows=_rows(self._injects[-1]))
        self._functions: Functions | None = functions
        self._mask_id, self._ids = manifest.pairing.mask_id, draft_token_ids(bundle)
        self._dtype = next(port.dtype for port in self._injects[0].inputs if port.name == "taps")

    def close(self) -> None:
        if self._functions is not None:
            self._functions.close()
        self._functions = None

    def _inject_impl(self, memory: Array, rows: int, position: int) -> None:
        graph = _narrowest(self._injects, rows)
        taps = np.zeros((1, _rows(graph), memory.shape[1]), self._dtype)
        taps[0, :rows] = memory[:rows]
        _opened(self._functions).call(_name(graph), {"taps": taps, "position": np.array([position], np.int32)})

    def _draft_impl(self, anchor: int, position: int, width: int) -> Sequence[int]:
        graph = _narrowest(self._drafts, width)
        block = np.full((1, _rows(graph)), self._mask_id, np.int32)
        block[0, 0] = anchor
        results = _opened(self._functions).call(
            _name(graph), {"block": block, "position": np.array([position], np.int32)}
        )
        rows = [int(row) for row in results["proposals"][0, : width - 1]]
        return rows if self._ids is None else [self._ids[row] for row in rows]


def engine_file(model: ModelRecord) -> str:
    """The one engine of `model`. Raises `BundleError` where its graphs are in several."""
    files = {graph.file for graph in model.graphs}
    if len(files) != 1:
        raise BundleError(
            f"{model.name} has {len(files)} engines",
            why="this back-end keeps all graphs of a model in one",
            fix="build the bundle again",
        )
    return files.pop()


def state_ports(model: ModelRecord) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of every state of `model`, by name."""
    graph = model.graphs[0]
    names = {taken for taken, given in graph.caches if taken == given}
    return {
        port.name: (tuple(int(size) for size in port.shape), port.dtype) for port in graph.inputs if port.name in names
    }


def _of_role(model: ModelRecord, role: str) -> list[GraphRecord]:
    """Graphs of one role, narrowest first. Raises `BundleError` where there is none."""
    found = sorted((graph for graph in model.graphs if graph.role == role and graph.rows is not None), key=_rows)
    if not found:
        raise BundleError(
            f"{model.name} has no {role} graph", why="bundles of this back-end have one", fix="build the bundle again"
        )
    return found


def _narrowest(graphs: list[GraphRecord], rows: int) -> GraphRecord:
    return next(graph for graph in sorted(graphs, key=_rows) if _rows(graph) >= rows)


def _rows(graph: GraphRecord) -> int:
    return graph.rows or 0


def _name(graph: GraphRecord) -> str:
    if graph.function is None:
        raise BundleError(
            f"the {graph.role} graph of {graph.rows} rows names no entry point", fix="build the bundle again"
        )
    return graph.function


def _opened(functions: Functions | None) -> Functions:
    if functions is None:
        raise UsageError(
            "this session is closed", why="its engines and their memory are gone", fix="load the bundle again"
        )
    return functions
