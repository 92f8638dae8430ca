"""A built ONNX Runtime target for many sequences at once: what makes training data, not what an app runs.

The graph of a bundle answers for one sequence, [1, S]. GroupQueryAttention takes a batch as well, each sequence at its
own length, as long as every one of them feeds a single row. Opening the shapes is then all there is to do: weights stay
where they are, and rows round as they do in the bundle, since no product knows which rows belong together.
"""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from dflash_compile.runtime.errors import IncompatibleError

BATCH, LENGTH = "batch", "length"
_ATTENTION = "GroupQueryAttention"
_TOTAL = 6  # its input `total_sequence_length`, one number for the whole batch


def batched_target(graph_file: Path) -> bytes:
    """The target graph `graph_file` with a free batch and a free cache length, as a serialised model.

    tokens int32 [N, S], position int32 [N], pick int32 [R], caches [N, kv, L, hd]; gives logits [N, R, V] and taps
    [N, S, n * H]. N is 1, or S is 1. Its weights are still in the data file beside `graph_file`. Raises
    `IncompatibleError` where the graph was not lowered for ONNX Runtime's attention.
    """
    model = ir.load(graph_file)
    graph = model.graph
    attentions = [node for node in graph if node.op_type == _ATTENTION]
    if not attentions:
        raise IncompatibleError(
            "this target has no attention that takes a batch", where=str(graph_file), fix="build it without --portable"
        )
    caches = {
        value.name
        for node in attentions
        for value in (node.inputs[3], node.inputs[4], node.outputs[1], node.outputs[2])
        if value is not None
    }
    for value in (*graph.inputs, *graph.outputs):
        _open(value, is_cache=value.name in caches)
    for value in (output for node in graph for output in node.outputs if not output.is_graph_output()):
        value.shape = None  # recorded for one sequence
    for node in graph:
        if node.op_type == "Reshape":
            _keep_batch(graph, node)
    _share_longest(graph, attentions)
    serialised: bytes = ir.to_proto(model).SerializeToString()
    return serialised


def _open(value: ir.Value, is_cache: bool) -> None:
    if value.name == "pick" or value.shape is None:
        return
    sizes: list[int | ir.SymbolicDim | str | None] = list(value.shape)
    sizes[0] = BATCH
    if is_cache:
        sizes[2] = LENGTH
    value.shape = ir.Shape(sizes)


def _keep_batch(graph: ir.Graph, node: ir.Node) -> None:
    """A reshape to [1, all the rest, …] keeps the first size instead, whatever it is."""
    shape = node.inputs[1]
    sizes = None if shape is None or shape.const_value is None else shape.const_value.numpy().tolist()
    if sizes is None or sizes[:2] != [1, -1]:
        return
    name = f"batched_{'_'.join(map(str, sizes[1:]))}"
    if name not in graph.initializers:
        tensor = ir.tensor([0, *sizes[1:]], dtype=ir.DataType.INT64, name=name)
        graph.register_initializer(
            ir.Value(name=name, const_value=tensor, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([len(sizes)]))
        )
    node.replace_input_with(1, graph.initializers[name])
    node.attributes.pop("allowzero", None)  # with it, 0 would be a size


def _share_longest(graph: ir.Graph, attentions: list[ir.Node]) -> None:
    """Every attention gets the longest sequence's length where it got the only one's."""
    total = attentions[0].inputs[_TOTAL]
    assert total is not None
    producer = total.producer()
    assert producer is not None
    longest = ir.node("ReduceMax", [total], attributes={"keepdims": 1})
    graph.insert_after(producer, longest)
    for node in attentions:
        node.replace_input_with(_TOTAL, longest.outputs[0])
