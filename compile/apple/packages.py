"""A role whose model is cut by layers into several engines, which run one after the other: what each of them takes and
gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.signature import Port
from dflash_compile.runtime.bundle.parts import TAPS, tap_port

from ..pair_sizes import Models
from .equivalence import check_pieces
from .partition import Piece, cut
from .roles import Role


@dataclass(frozen=True)
class PartRole(Role):
    """What one engine does of a role, over the cache of its own layers."""

    whole: Role
    starts: tuple[int, ...]
    """layers before which the model is cut"""
    number: int
    """of this part, the first is 0"""
    layers: range
    asked: tuple[Port, ...]
    """what the host hands in, and earlier parts"""
    given_on: tuple[Port, ...]
    """hidden states and taps that it gives"""

    @property
    def last(self) -> bool:
        """Whether it gives what the whole role is there for."""
        return self.number == len(self.starts)

    @property
    def results(self) -> tuple[Port, ...]:
        return (*(port for port in self.whole.results if self.last and port.name != TAPS), *self.given_on)

    @property
    def own_inputs(self) -> tuple[Port, ...]:
        return self.asked

    def trace(self, models: Models, length: int | None = None) -> Graph:
        return cut(self.whole.trace(models, length), self.starts, self.whole.taps)[self.number].graph


def parted(role: Role, graph: Graph, starts: Sequence[int]) -> list[tuple[Role, Graph]]:
    """`role` and its `graph`, cut before each of the layers `starts`: as they are where there is none.

    Raises `BuildError` where the pieces are not the graph.
    """
    if not starts:
        return [(role, graph)]
    pieces = cut(graph, starts, role.taps)
    check_pieces(graph, pieces, role.taps)
    return list(_parts(role, graph, pieces))


def _parts(role: Role, graph: Graph, pieces: Sequence[Piece]) -> Iterator[tuple[Role, Graph]]:
    semantic, starts = {port.name for port in graph.signature.inputs}, tuple(piece.layers.start for piece in pieces[1:])
    for number, piece in enumerate(pieces):
        read = {port.name for port in piece.graph.signature.inputs}
        caches = {name for name, _ in piece.graph.signature.caches}
        engine = {port.name for port in role.inputs} | {port.name for port in piece.reads} | caches
        # Ports that the semantic graph does not have serve to make inputs of it that the engine does not have.
        makes = bool(read - engine)
        own = [port for port in role.own_inputs if port.name in read or (makes and port.name not in semantic)]
        reads, gives = ([replace(port, dtype=role.dtype) for port in ports] for ports in (piece.reads, piece.gives))
        given = {port.name for port in piece.gives}
        taps = tuple(layer for layer in role.taps if tap_port(layer) in given)
        cache = replace(role.cache, entries=2 * len(piece.layers))
        part = PartRole(
            name=role.name,
            owner=role.owner,
            widths=role.widths,
            cache=cache,
            dtype=role.dtype,
            whole=role,
            starts=starts,
            number=number,
            layers=piece.layers,
            taps=taps,
            taps_width=role.taps_width,
            asked=(*own, *reads),
            given_on=tuple(gives),
        )
        yield part, piece.graph
