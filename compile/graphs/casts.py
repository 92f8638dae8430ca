"""Casts to float32 and straight back are taken out, also where only the shape changes in between."""

from __future__ import annotations

import onnx_ir as ir

from .edit import Editor, nodes

_MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")


def fold_casts(model: ir.Model) -> None:
    """Replace `Cast(move(Cast(x)))`, wide in the middle, by `move(x)`. Exact: widening loses nothing."""
    for node in nodes(model, "Cast", ""):
        target = ir.DataType(node.attributes["to"].as_int())
        source, moves = node.inputs[0], []
        while (
            source is not None
            and (producer := source.producer()) is not None
            and producer.domain == ""
            and producer.op_type in _MOVES
        ):
            moves.append(producer)
            source = producer.inputs[0]
        widened = None if source is None else source.producer()
        if (
            widened is None
            or widened.op_type != "Cast"
            or widened.inputs[0] is None
            or widened.inputs[0].dtype != target
        ):
            continue
        edit, value = Editor(model, node), widened.inputs[0]
        for move in reversed(moves):
            value = edit.one(move.op_type, [value, *move.inputs[1:]], dict(move.attributes), like=move.outputs[0])
            value.type = ir.TensorType(target)
        node.outputs[0].replace_all_uses_with(value)
        model.graph.remove(node, safe=True)
