"""A semantic graph cut before some of its layers: partitions that run one after the other, the later ones on values
that the earlier give.

The nodes of a graph lie in the order in which the model runs them. So a partition begins with the first node that
reads a weight of its first layer. What crosses a cut is the hidden state of each row; integers, masks among them,
are made again where they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph as Nodes
from torch.fx import GraphModule, Node

from dflash_compile.export.tracing.graph import Graph, WeightRef
from dflash_compile.export.tracing.signature import Dtype, Port, Signature, cache_names
from dflash_compile.runtime.bundle.parts import TAPS, tap_port

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_DTYPE: Dtype = "float32"
"""of every value that crosses: semantic graphs compute in it"""


@dataclass(frozen=True)
class Partition:
    """Some layers of a graph, with what comes before the first layer of all or behind the last."""

    graph: Graph
    layers: range
    reads: tuple[Port, ...]
    """values that earlier partitions give"""
    gives: tuple[Port, ...]
    """values for later partitions and for the host: hidden states, and taps one by one"""


def units(graph: Graph) -> tuple[frozenset[WeightRef], ...]:
    """What no cut divides: for each layer the weights read while it runs, the first with all before it and the last
    with all behind it.
    """
    found: list[set[WeightRef]] = [set() for _ in range(_layers(graph))]
    refs, at = _refs(graph), 0
    for node in graph.program.graph_module.graph.nodes:
        for ref in (refs[source] for source in node.all_input_nodes if source in refs):
            at = max(at, _layer_of(ref))
            found[at].add(ref)
    return tuple(map(frozenset, found))


def partition_layers(graph: Graph, starts: Sequence[int], taps: Sequence[int] = ()) -> tuple[Partition, ...]:
    """`graph` before each of the layers `starts`, ascending; one partition more than there are of them.

    `taps` are the layers that its taps are joined of.
    """
    return tuple(_Partitioner(graph, starts, taps).partitions())


def outputs(graph: Graph) -> dict[str, Node]:
    """The values of a graph's outputs, by port."""
    (last,) = (node for node in graph.program.graph_module.graph.nodes if node.op == "output")
    return dict(zip((port.name for port in graph.signature.outputs), last.args[0], strict=True))


def joined(taps: Node) -> list[Node]:
    """The values that `taps` is the join of, in list order."""
    if taps.target is not torch.ops.aten.cat.default:
        raise AssertionError(f"taps are made by {taps.target}")
    return list(taps.args[0])  # type: ignore[arg-type]


def inputs(graph: Graph) -> dict[str, Node]:
    """The values that a graph is given, by port."""
    found = (node for spec, node in placeholders(graph) if spec.kind == InputKind.USER_INPUT)
    return dict(zip((port.name for port in graph.signature.inputs), found, strict=True))


def placeholders(graph: Graph) -> list[tuple[InputSpec, Node]]:
    """Weights, tables and inputs: what each is, and the node that stands for it."""
    nodes = [node for node in graph.program.graph_module.graph.nodes if node.op == "placeholder"]
    return list(zip(graph.program.graph_signature.input_specs, nodes, strict=True))


def _refs(graph: Graph) -> dict[Node, WeightRef]:
    return {
        node: graph.weights[spec.target]
        for spec, node in placeholders(graph)
        if spec.target is not None and spec.target in graph.weights
    }


def _layers(graph: Graph) -> int:
    return len(graph.signature.caches) // 2


def _layer_of(ref: WeightRef) -> int:
    """The layer whose weight `ref` is; -1 for those of none."""
    found = _LAYER.search(ref.tensor)
    return -1 if found is None else int(found[1])


class _Partitioner:
    """One graph on its way into partitions. A value belongs to the partition whose nodes make it."""

    def __init__(self, graph: Graph, starts: Sequence[int], taps: Sequence[int]) -> None:
        self.graph = graph
        self.spans = [range(*edges) for edges in pairwise([0, *starts, _layers(graph)])]
        self.order = {node: number for number, node in enumerate(graph.program.graph_module.graph.nodes)}
        self.part = self._parts(starts)
        given, taken = outputs(graph), inputs(graph)
        self.taken = {name: taken.pop(name) for name, _ in graph.signature.caches}
        self.written = [given.pop(name) for _, name in graph.signature.caches]
        self.inputs = taken
        self.taps = dict(zip(joined(given.pop(TAPS)), map(tap_port, taps), strict=True)) if TAPS in given else {}
        self.ends = given

    def _parts(self, starts: Sequence[int]) -> dict[Node, int]:
        refs, found, at = _refs(self.graph), {}, 0
        for node in self.order:
            while at < len(starts) and any(
                source in refs and _layer_of(refs[source]) >= starts[at] for source in node.all_input_nodes
            ):
                at += 1
            found[node] = at
        return found

    def partitions(self) -> Iterator[Partition]:
        """First to last."""
        bodies: list[set[Node]] = []
        reads: list[list[Node]] = []
        crossing: set[Node] = set()
        for number in reversed(range(len(self.spans))):
            body, earlier = self._body(number, crossing)
            bodies.insert(0, body)
            reads.insert(0, earlier)
            crossing.update(earlier)
        hidden = (node for node in sorted(crossing, key=self.order.__getitem__) if node not in self.taps)
        names = self.taps | {node: f"hidden_{number}" for number, node in enumerate(hidden)}
        for number, body in enumerate(bodies):
            gives = sorted((node for node in names if self.part[node] == number), key=self.order.__getitem__)
            yield self._partition(
                number, body, {node: names[node] for node in reads[number]}, {node: names[node] for node in gives}
            )

    def _body(self, number: int, crossing: Collection[Node]) -> tuple[set[Node], list[Node]]:
        """The nodes of a partition, whose values `crossing` later ones read, and the values of earlier ones that it
        reads itself.
        """
        span = self.spans[number]
        wanted = [node for node in (*self.ends.values(), *self.taps, *crossing) if self.part[node] == number]
        wanted += self.written[2 * span.start : 2 * span.stop]
        body: set[Node] = set()
        earlier: set[Node] = set()
        while wanted:
            node = wanted.pop()
            if node.op != "placeholder" and self.part[node] < number and node.meta["val"].is_floating_point():
                earlier.add(node)
            elif node not in body:
                body.add(node)
                wanted.extend(node.all_input_nodes)
        return body, sorted(earlier, key=self.order.__getitem__)

    def _partition(
        self, number: int, body: set[Node], reads: Mapping[Node, str], gives: Mapping[Node, str]
    ) -> Partition:
        span, whole = self.spans[number], self.graph.signature
        pairs, cached = whole.caches[2 * span.start : 2 * span.stop], cache_names(len(span))
        own = [name for name, node in self.inputs.items() if node in body]
        ends = [name for name, node in self.ends.items() if self.part[node] == number]
        renamed = {
            before: after
            for old, new in zip(pairs, cached, strict=True)
            for before, after in zip(old, new, strict=True)
        }
        read, given = (
            tuple(Port(name, _DTYPE, tuple(node.meta["val"].shape)) for node, name in side.items())
            for side in (reads, gives)
        )
        taken, made = ({port.name: port for port in side} for side in (whole.inputs, whole.outputs))
        signature = Signature(
            role=whole.role,
            inputs=(
                *(taken[name] for name in own),
                *read,
                *(replace(taken[name], name=renamed[name]) for name, _ in pairs),
            ),
            outputs=(
                *(made[name] for name in ends),
                *given,
                *(replace(made[name], name=renamed[name]) for _, name in pairs),
            ),
            caches=cached,
        )
        values = [*(self.inputs[name] for name in own), *reads, *(self.taken[name] for name, _ in pairs)]
        results = [*(self.ends[name] for name in ends), *gives, *self.written[2 * span.start : 2 * span.stop]]
        program = self._program(body, values, reads, results)
        kept = {spec.target for spec in program.graph_signature.input_specs if spec.target is not None}
        weights = {name: ref for name, ref in self.graph.weights.items() if name in kept}
        constants = {name: value for name, value in self.graph.constants.items() if name in kept}
        return Partition(Graph(signature, program, weights, constants), span, read, given)

    def _program(
        self, body: set[Node], values: Sequence[Node], reads: Mapping[Node, str], results: Sequence[Node]
    ) -> ExportedProgram:
        """`body` as a program that takes `values` and gives `results`; those in `reads` get the names they have
        there.
        """
        whole, nodes = self.graph.program, Nodes()
        stored = [
            (spec, node)
            for spec, node in placeholders(self.graph)
            if node in body and spec.kind != InputKind.USER_INPUT
        ]
        copies = {node: nodes.node_copy(node) for _, node in stored}
        for node in values:
            copies[node] = nodes.placeholder(reads[node]) if node in reads else nodes.node_copy(node)
            copies[node].meta = dict(node.meta)
        for node in sorted(body - copies.keys(), key=self.order.__getitem__):
            copies[node] = nodes.node_copy(node, copies.__getitem__)
        nodes.output(tuple(copies[node] for node in results))
        names = {spec.target for spec, _ in stored}
        inputs = [replace(spec, arg=TensorArgument(copies[node].name)) for spec, node in stored]
        inputs += [InputSpec(InputKind.USER_INPUT, TensorArgument(copies[node].name), None) for node in values]
        return ExportedProgram(
            root=GraphModule(whole.graph_module, nodes),
            graph=nodes,
            graph_signature=ExportGraphSignature(
                inputs,
                [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(copies[node].name), None) for node in results],
            ),
            state_dict={name: value for name, value in whole.state_dict.items() if name in names},
            range_constraints={},
            module_call_graph=[],
            constants={name: value for name, value in whole.constants.items() if name in names},
        )
