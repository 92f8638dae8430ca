"""Small steps that every pass needs: find a producer, add a node, take one out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from .semantics import DOMAIN

Value = ir.Value | None


def nodes(model: ir.Model, op: str, domain: str = DOMAIN) -> Iterator[ir.Node]:
    """The nodes of one operator, safe against changes while iterating."""
    yield from [node for node in model.graph if node.op_type == op and node.domain == domain]


def made_by(value: Value, op: str, domain: str = "") -> ir.Node | None:
    """The node that produces `value`, if it is an `op`."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op and node.domain == domain else None


def only_user(value: ir.Value, op: str, domain: str = "") -> ir.Node | None:
    """The one node that reads `value`, if there is just one, it is an `op`, and `value` leaves the graph nowhere
    else.
    """
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    node = uses[0].node
    return node if node.op_type == op and node.domain == domain else None


class Editor:
    """Adds nodes before `place`, with names derived from it, so that equal graphs get equal names.

    Without a place they go to the end, for a later `eliminate_dead_nodes` to sort.
    """

    def __init__(self, model: ir.Model, place: ir.Node | None, name: str = "") -> None:
        self.model, self.place, self.count = model, place, 0
        self.name = place.name if place is not None else name

    def add(
        self,
        op: str,
        inputs: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        like: Sequence[Value] = (),
    ) -> list[ir.Value]:
        """Add a node and return its outputs, typed as the values in `like`."""
        node = ir.node(op, inputs, attributes or {}, domain=domain, num_outputs=outputs)
        self.count += 1
        node.name = f"{self.name}/{self.count}"
        for index, value in enumerate(node.outputs):
            value.name = f"{node.name}:{index}"
            if index < len(like) and (known := like[index]) is not None:
                value.type, value.shape = known.type, known.shape
        if domain:
            self.model.graph.opset_imports.setdefault(domain, 1)
        if self.place is None:
            self.model.graph.append(node)
        else:
            self.model.graph.insert_before(self.place, node)
        return list(node.outputs)

    def one(
        self,
        op: str,
        inputs: Sequence[Value],
        attributes: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        like: Value = None,
    ) -> ir.Value:
        """Add a node of one output and return that."""
        return self.add(op, inputs, attributes, domain=domain, like=(like,))[0]

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """An initializer with these contents; equal contents are stored once."""
        return constant(self.model, array)


def constant(model: ir.Model, array: np.ndarray[Any, Any]) -> ir.Value:
    """An initializer of `model` with these contents; equal contents are stored once."""
    flat = "_".join(str(item) for item in array.reshape(-1)[:4])
    name = f"const_{array.dtype}_{'x'.join(map(str, array.shape))}_{flat}".replace("-", "m")
    found = model.graph.initializers.get(name)
    if found is not None and found.const_value is not None and np.array_equal(found.const_value.numpy(), array):
        return found
    while name in model.graph.initializers:
        name += "_"
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=name),
    )
    model.graph.initializers.add(value)
    return value


def replace_all_uses(old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
    """Let `new` be read and returned wherever `old` was. A graph output keeps its name and type."""
    for before, after in zip(old, new, strict=True):
        if before.is_graph_output():
            after.name, before.name = before.name, f"{before.name}/replaced"
            after.type, after.shape = before.type, before.shape
        before.replace_all_uses_with(after, replace_graph_outputs=True)


def replace_node(node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Let `values` be read and returned wherever the outputs of `node` were, and take it out."""
    replace_all_uses(node.outputs, values)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def eliminate_dead_nodes(model: ir.Model) -> None:
    """Sort the nodes, and take out nodes and initializers that nothing reads."""
    # onnx-ir's RemoveUnusedNodesPass would change nodes that stay: it cuts off inputs left empty at the end.
    model.graph.sort()
    for node in reversed(model.graph):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            model.graph.remove(node, safe=True)
    for value in list(model.graph.initializers.values()):
        if not value.uses() and not value.is_graph_output():
            del model.graph.initializers[str(value.name)]
