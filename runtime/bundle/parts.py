"""Models that are cut by layers into several engines: which graphs belong together, and what must hold between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from .manifest import GraphRecord, ModelRecord

TAPS = "taps"
"""the output of an engine that holds all layers, the join of every tap"""
_OF_THE_HOST = frozenset({"tokens", "position", "valid", "taps", "block", "cache"})
_OF_EVERY_PART = "rows"


def tap_port(layer: int) -> str:
    """The output of a part that is the tap of `layer`."""
    return f"tap_{layer}"


def engines(model: ModelRecord) -> list[ModelRecord]:
    """`model` once for each of its engines, in the order in which they run, with that engine's graphs."""
    ordered = sorted(model.graphs, key=_number)
    files = list(dict.fromkeys(graph.file for graph in ordered))
    return [
        msgspec.structs.replace(model, graphs=[graph for graph in model.graphs if graph.file == file]) for file in files
    ]


def calls(model: ModelRecord) -> list[list[GraphRecord]]:
    """The graphs of `model` that make one call together, in the order in which they run."""
    found: dict[tuple[object, ...], list[GraphRecord]] = {}
    for graph in model.graphs:
        found.setdefault((graph.role, graph.rows, graph.arch), []).append(graph)
    return [sorted(parts, key=_number) for parts in found.values()]


def part_faults(model: ModelRecord, taps: Sequence[int]) -> Iterator[str]:
    """What is wrong with the parts of a model's calls; a target's give the outputs of the layers `taps`."""
    for parts in calls(model):
        if all(graph.part is None for graph in parts):
            if len(parts) > 1:
                yield f"{parts[0].role} is listed twice at one width for one architecture"
            continue
        yield from (f"{parts[0].role} {fault}" for fault in _faults(parts, model.layers, taps))
    for engine in engines(model):
        if len({_place(graph) for graph in engine.graphs}) > 1:
            yield f"{engine.graphs[0].file} is another part in some calls than in others"


def _faults(parts: Sequence[GraphRecord], layers: int, taps: Sequence[int]) -> Iterator[str]:
    found = [graph.part for graph in parts if graph.part is not None]
    if [(part.number, part.count) for part in found] != [(number, len(parts)) for number in range(len(parts))]:
        yield "lacks a part, or has one twice"
    if [layer for part in found for layer in part.layers] != list(range(layers)):
        yield f"has parts that are not the layers 0 to {layers - 1} in their order"
    made: dict[str, tuple[str, list[int | str]]] = {}
    for graph in parts:
        for port in graph.inputs:
            if port.name not in _OF_THE_HOST and made.get(port.name) != (port.dtype, port.shape):
                yield f"reads {port.name}, which no earlier part gives so"
        for port in graph.outputs:
            if port.name in made and port.name != _OF_EVERY_PART:
                yield f"gives {port.name} twice"
            made[port.name] = port.dtype, port.shape
        yield from (
            f"says that it gives the tap {tap}, and does not"
            for tap in (graph.part.taps if graph.part else [])
            if tap_port(tap) not in made
        )
    listed = sorted(tap for part in found for tap in part.taps)
    if listed != (sorted(taps) if parts[0].role in ("prefill", "verify", "decode") else []):
        yield f"gives the taps {listed}"


def _number(graph: GraphRecord) -> int:
    return 0 if graph.part is None else graph.part.number


def _place(graph: GraphRecord) -> tuple[object, ...]:
    return () if graph.part is None else (graph.part.number, graph.part.count, *graph.part.layers)
