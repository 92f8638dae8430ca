"""Matmuls whose weights are stored transposed, as they are multiplied: [in, out], where checkpoints have [out, in].

Core AI's runtime on Linux transposes a weight at every call: two thirds of the time of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_ATEN = torch.ops.aten
_LINEAR, _EMBEDDING = _ATEN.linear.default, _ATEN.embedding.default


def with_transposed_weights(program: ExportedProgram) -> ExportedProgram:
    """`program`, changed in place: what only matmuls and look-ups of rows read is stored transposed, and read so."""
    graph = program.graph_module.graph
    values = program._state_dict = dict(
        program.state_dict
    )  # of its own, and changed one by one: two copies of a model would be held otherwise
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target in values}
    for node in [node for node in graph.nodes if node.op == "placeholder" and node.name in targets]:
        if not any(user.target is _LINEAR for user in node.users) or not all(_reads(user, node) for user in node.users):
            continue
        target = targets[node.name]
        values[target] = torch.nn.Parameter(values[target].detach().t().contiguous(), requires_grad=False)
        node.meta["val"] = node.meta["val"].t().contiguous()
        for user in list(node.users):
            with graph.inserting_before(user):
                user.replace_all_uses_with(_REWRITES[user.target](_Calls(graph), *user.args))
            graph.erase_node(user)
    program.graph_module.recompile()
    return program


def _reads(user: Node, weight: Node) -> bool:
    """Whether `user` can read `weight` transposed."""
    if user.target is _LINEAR:
        return user.args[1] is weight and weight not in (user.args[0], *user.args[2:])
    return user.target is _EMBEDDING and user.args[0] is weight


class _Calls:
    """Appends calls to a graph, with the fake values that the converter asks for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, target: Callable[..., Any], *args: Any, **named: Any) -> Node:
        node = self.graph.call_function(target, args, named)
        node.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args), **named)
        return node


def _matmul(call: _Calls, x: Node, weight: Node, bias: Node | None = None) -> Node:
    *before, width = x.meta["val"].shape
    x = x if x.meta["val"].is_contiguous() else call(_ATEN.clone.default, x, memory_format=torch.contiguous_format)
    product = call(_ATEN.mm.default, call(_ATEN.view.default, x, [-1, width]), weight)
    product = call(_ATEN.view.default, product, [*before, weight.meta["val"].shape[1]])
    return product if bias is None else call(_ATEN.add.Tensor, product, bias)


def _rows(call: _Calls, table: Node, ids: Node, *_: Any) -> Node:
    """Rows of the table as it was: columns of what it is now. `_` tells gradients how to treat padding."""
    shape = ids.meta["val"].shape
    columns = call(_ATEN.index_select.default, table, 1, call(_ATEN.view.default, ids, [shape.numel()]))
    rows = call(_ATEN.permute.default, columns, [1, 0])
    return call(_ATEN.view.default, rows, [*shape, table.meta["val"].shape[0]])


_REWRITES: dict[Any, Callable[..., Node]] = {_LINEAR: _matmul, _EMBEDDING: _rows}
