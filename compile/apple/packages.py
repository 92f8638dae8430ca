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
from .equivalence import check_equivalence
from .partition import Partition, partition_layers
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
        return partition_layers(self.whole.trace(models, length), self.starts, self.whole.taps)[self.number].graph


def partitioned(role: Role, graph: Graph, starts: Sequence[int]) -> list[tuple[Role, Graph]]:
    """`role` and its `graph`, cut before each of the layers `starts`: as they are where there is none.

    Raises `BuildError` where the partitions are not the graph.
    """
    if not starts:
        return [(role, graph)]
    partitions = partition_layers(graph, starts, role.taps)
    check_equivalence(graph, partitions, role.taps)
    return list(_parts(role, graph, partitions))


def _parts(role: Role, graph: Graph, partitions: Sequence[Partition]) -> Iterator[tuple[Role, Graph]]:
    semantic, starts = (
        {port.name for port in graph.signature.inputs},
        tuple(partition.layers.start for partition in partitions[1:]),
    )
    for number, partition in enumerate(partitions):
        read = {port.name for port in partition.graph.signature.inputs}
        caches = {name for name, _ in partition.graph.signature.caches}
        engine = {port.name for port in role.inputs} | {port.name for port in partition.reads} | caches
        # Ports that the semantic graph does not have serve to make inputs of it that the engine does not have.
        makes = bool(read - engine)
        own = [port for port in role.own_inputs if port.name in read or (makes and port.name not in semantic)]
        reads, gives = (
            [replace(port, dtype=role.dtype) for port in ports] for ports in (partition.reads, partition.gives)
        )
        given = {port.name for port in partition.gives}
        taps = tuple(layer for layer in role.taps if tap_port(layer) in given)
        cache = replace(role.cache, entries=2 * len(partition.layers))
        part = PartRole(
            name=role.name,
            owner=role.owner,
            widths=role.widths,
            cache=cache,
            dtype=role.dtype,
            whole=role,
            starts=starts,
            number=number,
            layers=partition.layers,
            taps=taps,
            taps_width=role.taps_width,
            asked=(*own, *reads),
            given_on=tuple(gives),
        )
        yield part, partition.graph
