"""Proof that the partitions of a graph, run one after the other, are the graph: every value is known by the operations
that made it, at any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.node import map_arg

from dflash_compile.export.tracing.graph import Graph
from dflash_compile.runtime.bundle.parts import TAPS, tap_port
from dflash_compile.runtime.errors import BuildError

from .partition import Partition, inputs, joined, outputs, placeholders


def check_equivalence(graph: Graph, partitions: Sequence[Partition], taps: Sequence[int] = ()) -> None:
    """Raises `BuildError` unless `partitions` come to the very outputs of `graph`, caches and the taps of the layers
    `taps` included. Reads no weight.
    """
    values = _Values()
    wanted = values.outputs_of(graph, {name: values.number(f"input {name}") for name in inputs(graph)})
    if TAPS in (ends := outputs(graph)):
        del wanted[TAPS]
        wanted |= {tap_port(layer): values.numbers[node] for layer, node in zip(taps, joined(ends[TAPS]), strict=True)}
    known = {port.name: values.number(f"input {port.name}") for port in graph.signature.inputs}
    for partition in partitions:
        theirs = graph.signature.caches[2 * partition.layers.start : 2 * partition.layers.stop]
        pairs = list(zip(partition.graph.signature.caches, theirs, strict=True))
        taken = {own: known[name] for (own, _), (name, _) in pairs}
        read = {name: known.get(name, -1) for name in inputs(partition.graph) if name not in taken}
        written = {own: name for (_, own), (_, name) in pairs}
        known |= {
            written.get(name, name): number for name, number in values.outputs_of(partition.graph, taken | read).items()
        }
    wrong = [name for name, number in wanted.items() if known.get(name) != number]
    if wrong:
        raise BuildError(
            f"in {len(partitions)} partitions, the {graph.signature.role} graph gives another {', '.join(wrong[:4])}",
            fix="report this, with both config.json",
        )


class _Values:
    """Numbers for values: equal for equal operations on equal values."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.numbers: dict[Node, int] = {}

    def number(self, made: str) -> int:
        """The number of what is `made` so."""
        return self.known.setdefault(made, len(self.known))

    def outputs_of(self, graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
        """The numbers of a graph's outputs, by port, where its inputs are those `given`."""
        for spec, node in placeholders(graph):
            if spec.kind != InputKind.USER_INPUT:
                self.numbers[node] = self.number(f"stored {spec.target}")
        self.numbers |= {node: given[name] for name, node in inputs(graph).items()}
        for node in graph.program.graph_module.graph.nodes:
            if node.op not in ("placeholder", "output"):
                read = map_arg((node.args, dict(node.kwargs)), lambda source: f"value {self.numbers[source]}")
                self.numbers[node] = self.number(f"{node.target} {read!r}")
        return {name: self.numbers[node] for name, node in outputs(graph).items()}
