"""Semantic operators in standard opset 24: what any runtime, and onnx's own reference evaluator, can run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .edit import Editor, nodes, replace_node
from .positions import Positions

ANCHORED, SINKS = "KVAnchoredAttention", "KVSinkAttention"


def standard_norms(model: ir.Model) -> None:
    """RMSNorm as RMSNormalization."""
    for node in nodes(model, "RMSNorm"):
        attributes = {"axis": -1, "epsilon": node.attributes["eps"].as_float()}
        replace_node(node, [Editor(model, node).one("RMSNormalization", node.inputs, attributes, like=node.outputs[0])])


def standard_linears(model: ir.Model) -> None:
    """Linear as MatMul with a transposed weight."""
    for node in nodes(model, "Linear"):
        edit = Editor(model, node)
        weight = edit.one("Transpose", [node.inputs[1]], {"perm": [1, 0]})
        replace_node(node, [edit.one("MatMul", [node.inputs[0], weight], like=node.outputs[0])])


def standard_rotary(model: ir.Model, positions: Positions) -> None:
    """Rotary as RotaryEmbedding with position ids."""
    for node in nodes(model, "Rotary"):
        x, cos, sin, _ = node.inputs
        out = Editor(model, node).one("RotaryEmbedding", [x, cos, sin, positions.of_rows()], like=node.outputs[0])
        replace_node(node, [out])


def standard_writes(model: ir.Model, positions: Positions) -> None:
    """KVWrite as TensorScatter."""
    for node in nodes(model, "KVWrite"):
        new, cache, _ = node.inputs
        replace_node(node, [_scatter(Editor(model, node), cache, new, positions, node.outputs[0])])


def standard_attention(model: ir.Model, positions: Positions) -> None:
    """KVAttention and its other forms as TensorScatter of K and V, then Attention over the whole cache under an
    explicit mask.
    """
    for node in [*nodes(model, "KVAttention"), *nodes(model, ANCHORED), *nodes(model, SINKS)]:
        q, k, v, k_cache, v_cache, _, *sinks = node.inputs
        out, k_out, v_out = node.outputs
        edit = Editor(model, node)
        keys = _scatter(edit, k_cache, k, positions, k_out)
        values = _scatter(edit, v_cache, v, positions, v_out)
        window, causal = node.attributes["window"].as_int(), bool(node.attributes["causal"].as_int())
        length = k_cache.shape[2]  # type: ignore[index, union-attr]
        mask = positions.visible(int(length), window, causal, node.op_type == ANCHORED)  # type: ignore[arg-type]
        seen: tuple[ir.Value | None, ...] = (keys, values, mask)
        if sinks:
            seen = sunk(edit, keys, values, mask, sinks[0], int(out.shape[1]))  # type: ignore[index, arg-type]
        attended = edit.one("Attention", [q, *seen], {"scale": node.attributes["scale"].as_float()}, like=out)
        replace_node(node, [attended, keys, values])


def sunk(
    edit: Editor, keys: ir.Value, values: ir.Value, mask: ir.Value, sinks: ir.Value | None, heads: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """K, V and mask with one more column, whose key is zero: its score is then what the mask adds, the sink of each
    head.
    """
    kv, length, width = (int(size) for size in keys.shape[1:])  # type: ignore[index, arg-type]
    nothing = edit.constant(np.zeros((1, kv, 1, width), np.float32))
    more = [edit.one("Concat", [value, nothing], {"axis": 2}) for value in (keys, values)]
    scores = edit.one(
        "Where", [mask, edit.constant(np.array(0, np.float32)), edit.constant(np.array(-np.inf, np.float32))]
    )
    rows = edit.one("Shape", [mask], {"start": 0, "end": 1})
    shapes = [
        edit.one("Concat", [edit.constant(np.array([1, heads])), rows, edit.constant(np.array([size]))], {"axis": 0})
        for size in (length, 1)
    ]
    column = edit.one("Reshape", [sinks, edit.constant(np.array([1, heads, 1, 1]))])
    bias = [edit.one("Expand", pair) for pair in zip((scores, column), shapes, strict=True)]
    return more[0], more[1], edit.one("Concat", bias, {"axis": 3})


def _scatter(
    edit: Editor, cache: ir.Value | None, new: ir.Value | None, positions: Positions, like: ir.Value
) -> ir.Value:
    return edit.one("TensorScatter", [cache, new, positions.start()], {"axis": -2}, like=like)
