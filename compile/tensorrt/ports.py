"""What goes in and comes out of a graph that decides on the device: token ids, never logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from dflash_compile.export.tracing.signature import Signature

from ..graphs.edit import Editor, Value, made_by, replace_all_uses

_INT32 = ir.DataType.INT32


def body_ports(model: ir.Model) -> None:
    """`hidden` of every row, and `last`, that of row `valid - 1`, or of the nearest row where there is no such."""
    edit = Editor(model, None, "choose")
    _pick_all(model)
    hidden, embedded = _output(model, "hidden"), model.graph.inputs[0]
    valid = ir.Value(name="valid", type=ir.TensorType(_INT32), shape=ir.Shape([1]))
    model.graph.inputs.insert(2, valid)
    rows = edit.one("Cast", [edit.one("Shape", [embedded], {"start": 1, "end": 2})], {"to": _INT32})
    row = edit.one("Max", [edit.one("Sub", [edit.one("Min", [valid, rows]), _ints(edit, [1])]), _ints(edit, [0])])
    last = edit.one("Gather", [hidden, row], {"axis": 1})
    last.name = "last"
    model.graph.outputs.insert(1, last)


def head_ports(model: ir.Model, rows: int) -> None:
    """`logits` become choices, what comes of comparing them with a block, and the block that they propose: `anchor`
    before the choices of all rows but the first.

    `rows` is the most there can be; the fewest are 2.
    """
    edit = Editor(model, None, "accept")
    hidden = model.graph.inputs[0]
    size = None if hidden.shape is None else hidden.shape[1]
    block = ir.Value(name="block", type=ir.TensorType(_INT32), shape=ir.Shape([1, size]))
    anchor, position = (
        ir.Value(name=name, type=ir.TensorType(_INT32), shape=ir.Shape([1])) for name in ("anchor", "position")
    )
    model.graph.inputs.extend([block, anchor, position])
    tokens = _choices(edit, _output(model, "logits"))
    accepted = _accepted(edit, block, tokens, rows)
    flat = edit.one("Reshape", [tokens, edit.constant(np.array([-1], np.int64))])
    moved = edit.one("Add", [edit.one("Add", [position, accepted]), _ints(edit, [1])])
    start, end, axis = (edit.constant(np.array([n], np.int64)) for n in (1, rows, 1))
    proposals = edit.one("Slice", [tokens, start, end, axis])
    first = edit.one("Reshape", [anchor, edit.constant(np.array([1, 1], np.int64))])
    answer = {
        "tokens": tokens,
        "proposals": edit.one("Concat", [first, proposals], {"axis": 1}),
        "accepted": accepted,
        "bonus": edit.one("Gather", [flat, accepted], {"axis": 0}),
        "next_position": moved,
    }
    _replace_output(model, "logits", answer)


def draft_ports(model: ir.Model) -> None:
    """`hidden` [1, B - 1, H] of the proposals behind a row that stands for the anchor, so that each is where its token
    goes.
    """
    edit = Editor(model, None, "align")
    hidden = _output(model, "hidden")
    first, end, axis = (edit.constant(np.array([n], np.int64)) for n in (0, 1, 1))
    front = edit.one("Slice", [hidden, first, end, axis])
    _replace_output(model, "hidden", {"hidden": edit.one("Concat", [front, hidden], {"axis": 1})})


def own_draft_ports(model: ir.Model, rows: int, mask_id: int, ids: Sequence[int] | None) -> None:
    """The block out, of a draft with a head of its own, and the anchor in, before what else it takes; `ids` are the
    tokens of a reduced head's rows.

    A graph that takes tokens to embed them by itself gets the anchor and masks.
    """
    edit = Editor(model, None, "propose")
    anchor = ir.Value(name="anchor", type=ir.TensorType(_INT32), shape=ir.Shape([1]))
    first = edit.one("Reshape", [anchor, edit.constant(np.array([1, 1], np.int64))])
    if model.graph.inputs[0].name == "block":
        masks = edit.constant(np.full((1, rows - 1), mask_id, np.int32))
        _replace_input(model, "block", edit.one("Concat", [first, masks], {"axis": 1}), [anchor])
    else:
        model.graph.inputs.insert(0, anchor)
    proposals = _choices(edit, _output(model, "logits"))
    if ids is not None:
        proposals = edit.one("Gather", [edit.constant(np.array(ids, np.int32)), proposals], {"axis": 0})
    _replace_output(model, "logits", {"block": edit.one("Concat", [first, proposals], {"axis": 1})})


def retype(model: ir.Model, signature: Signature) -> None:
    """Give every port the type and shape that `signature` says, in its order."""
    for values, ports in ((model.graph.inputs, signature.inputs), (model.graph.outputs, signature.outputs)):
        named = {value.name: value for value in values}
        assert named.keys() == {port.name for port in ports}, "the graph's ports are not the signature's"
        values[:] = [named[port.name] for port in ports]
        for port, value in zip(ports, values, strict=True):
            value.type, value.shape = ir.TensorType(ir.DataType[_ONNX_NAMES[port.dtype]]), ir.Shape(port.shape)


_ONNX_NAMES = {
    "float32": "FLOAT",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int32": "INT32",
    "int64": "INT64",
    "int8": "INT8",
}


def _choices(edit: Editor, logits: ir.Value) -> ir.Value:
    """int32 [1, R]: the index of each row's largest logit, the lowest of equals, read before they are widened."""
    widened = made_by(logits, "Cast")
    index = edit.one("ArgMax", [widened.inputs[0] if widened is not None else logits], {"axis": -1, "keepdims": 0})
    return edit.one("Cast", [index], {"to": _INT32})


def _accepted(edit: Editor, block: ir.Value, tokens: ir.Value, rows: int) -> ir.Value:
    """int32 [1]: how many proposals equal the choice of the row before them, up to the first that does not."""
    start, one, last, end = (edit.constant(np.array([n], np.int64)) for n in (0, 1, -1, rows))
    proposals = edit.one("Slice", [block, one, end, one])
    choices = edit.one("Slice", [tokens, start, last, one])
    same = edit.one("Equal", [proposals, choices])
    slots = edit.constant(np.arange(rows - 1, dtype=np.int32)[None])
    most: ir.Value = _ints(edit, [rows - 1])
    if block.shape is None or not block.shape.is_static():
        count = edit.one("Sub", [edit.one("Shape", [block], {"start": 1, "end": 2}), one])
        slots, most = edit.one("Slice", [slots, start, count, one]), edit.one("Cast", [count], {"to": _INT32})
    stops = edit.one("Where", [same, most, slots])
    return edit.one("ReduceMin", [stops, one], {"keepdims": 0})


def _ints(edit: Editor, values: Sequence[int]) -> ir.Value:
    return edit.constant(np.array(list(values), np.int32))


def _output(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.outputs if value.name == name)


def _pick_all(model: ir.Model) -> None:
    """Without `pick`: a gather of all rows in order would only copy them."""
    pick = next(port for port in model.graph.inputs if port.name == "pick")
    index, model.graph.inputs[:] = pick, [port for port in model.graph.inputs if port is not pick]
    while (node := next(iter(index.uses())).node).op_type != "Gather":
        (index,) = node.outputs
    whole = node.inputs[0]
    assert whole is not None
    replace_all_uses(node.outputs, [whole])  # what made the index is dead now, and goes with other dead nodes


def _replace_input(model: ir.Model, name: str, value: Value, added: list[ir.Value]) -> None:
    old = next(port for port in model.graph.inputs if port.name == name)
    assert value is not None
    index = model.graph.inputs.index(old)
    model.graph.inputs[index : index + 1] = added
    old.name = f"{name}/replaced"
    old.replace_all_uses_with(value)


def _replace_output(model: ir.Model, name: str, values: dict[str, ir.Value]) -> None:
    index = model.graph.outputs.index(_output(model, name))
    model.graph.outputs[index].name = f"{name}/replaced"
    model.graph.outputs[index : index + 1] = list(values.values())
    for new, value in values.items():
        value.name = new
