"""Acceptance and choices inside the graphs, against the runtime's own acceptance, on a head that is one look-up
table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from forms import quiet

from dflash_compile.compile.graphs.edit import Editor, eliminate_dead_nodes
from dflash_compile.compile.tensorrt.ports import body_ports, draft_ports, head_ports, own_draft_ports
from dflash_compile.runtime.acceptance import accept_greedy

VOCAB, ROWS = 13, 5
TABLE = np.random.default_rng(0).standard_normal((VOCAB, VOCAB)).astype(np.float32)
TABLE[3, [2, 7]] = 9  # two largest logits that are equal
INT32, FLOAT = ir.DataType.INT32, ir.DataType.FLOAT


def port(name: str, dtype: ir.DataType, shape: list[int | str]) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def graph(*inputs: ir.Value) -> tuple[ir.Model, Editor]:
    found = ir.Model(ir.Graph(list(inputs), [], nodes=[], opset_imports={"": 24}, name="table"), ir_version=10)
    return found, Editor(found, None, "model")


def give(found: ir.Model, value: ir.Value, name: str) -> None:
    value.name, value.type, value.shape = name, ir.TensorType(FLOAT), ir.Shape([1, None, VOCAB])
    found.graph.outputs.append(value)


def head(rows: int | str) -> ir.Model:
    """`hidden` [1, S, 1] holds tokens; their logits are the rows of `TABLE`."""
    found, edit = graph(port("hidden", FLOAT, [1, rows, 1]))
    tokens = edit.one("Cast", [edit.one("Squeeze", [*found.graph.inputs, edit.constant(np.array([2]))])], {"to": INT32})
    give(found, edit.one("Gather", [edit.constant(TABLE), tokens], {"axis": 0}), "logits")
    return found


def run(found: ir.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    for value in found.graph.outputs:
        value.shape = None
        value.type = ir.TensorType(FLOAT if value.name in ("hidden", "last") else INT32)
    eliminate_dead_nodes(found)
    proto = ir.to_proto(found)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), quiet())
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def rows_of(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, np.float32).reshape(1, -1, 1)


def following(token: int) -> int:
    return int(TABLE[token].argmax())


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("right", range(ROWS))
def test_acceptance_is_the_runtime_s(right: int, free: bool) -> None:
    found = head("rows" if free else ROWS)
    head_ports(found, ROWS)
    for anchor in range(VOCAB):
        block = [anchor]
        while len(block) < ROWS:
            block.append(following(block[-1]) if len(block) <= right else (following(block[-1]) + 1) % VOCAB)
        out = run(found, hidden=rows_of(block), block=ints(*block)[None], position=ints(40), anchor=ints(11))
        choices = [following(token) for token in block]
        expected = accept_greedy(block[1:], choices)
        assert out["tokens"][0].tolist() == choices
        assert expected.accepted == right
        assert (out["accepted"].tolist(), out["bonus"].tolist()) == ([right], [expected.bonus])
        assert out["next_position"].tolist() == [41 + right]
        assert out["proposals"].tolist() == [[11, *choices[1:]]], "what these rows propose, were they a drafter's"


def test_fewer_rows_than_the_most_are_compared_to_their_end() -> None:
    found = head("rows")
    head_ports(found, ROWS)
    block = [4, following(4)]
    out = run(found, hidden=rows_of(block), block=ints(*block)[None], position=ints(0), anchor=ints(0))
    assert (out["accepted"].tolist(), out["bonus"].tolist()) == ([1], [following(block[1])])
    assert out["proposals"].shape == (1, 2)


def test_a_match_behind_a_mismatch_does_not_count() -> None:
    found = head(ROWS)
    head_ports(found, ROWS)
    wrong = (following(1) + 1) % VOCAB
    block = [1, wrong, following(wrong), 0, 0]
    out = run(found, hidden=rows_of(block), block=ints(*block)[None], position=ints(0), anchor=ints(0))
    assert (out["accepted"].tolist(), out["bonus"].tolist()) == ([0], [following(1)])


def test_a_body_gives_all_rows_and_the_last_that_counts() -> None:
    found, edit = graph(port("embedded", FLOAT, [1, "rows", 1]), port("position", INT32, [1]), port("pick", INT32, [1]))
    hidden = edit.one("Gather", [edit.one("Neg", [found.graph.inputs[0]]), found.graph.inputs[2]], {"axis": 1})
    give(found, hidden, "hidden")
    body_ports(found)
    rows = [3, 1, 4, 5, 9]
    for valid, row in (
        (1, 0),
        (3, 2),
        (ROWS, 4),
        (0, 0),
        (64, 4),
    ):  # of another call's rows the nearest: nobody reads it
        out = run(found, embedded=rows_of(rows), position=ints(0), valid=ints(valid))
        assert out["hidden"].reshape(-1).tolist() == [-row for row in rows]
        assert out["last"].tolist() == [[[-rows[row]]]]


def test_a_draft_s_rows_are_where_the_block_has_their_tokens() -> None:
    found, edit = graph(port("embedded", FLOAT, [1, ROWS, 1]))
    ends = [edit.constant(np.array([n])) for n in (1, ROWS, 1)]
    give(found, edit.one("Slice", [found.graph.inputs[0], *ends]), "hidden")
    draft_ports(found)
    out = run(found, embedded=rows_of([7, 1, 2, 3, 4]))
    assert out["hidden"].reshape(-1)[1:].tolist() == [1, 2, 3, 4]
    assert out["hidden"].shape == (1, ROWS, 1)


@pytest.mark.parametrize("embeds", [True, False])
@pytest.mark.parametrize("ids", [None, tuple(range(50, 50 + VOCAB))])
def test_a_draft_with_its_own_head_gives_the_block_in_the_target_s_ids(
    ids: tuple[int, ...] | None, embeds: bool
) -> None:
    taken = port("block", INT32, [1, ROWS]) if embeds else port("embedded", FLOAT, [1, ROWS, 1])
    found, edit = graph(taken)
    ends = [edit.constant(np.array([n])) for n in (1, ROWS, 1)]
    rows = edit.one("Slice", [taken, *ends])
    if not embeds:
        rows = edit.one("Cast", [edit.one("Squeeze", [rows, edit.constant(np.array([2]))])], {"to": INT32})
    give(found, edit.one("Gather", [edit.constant(TABLE), rows], {"axis": 0}), "logits")
    own_draft_ports(found, ROWS, mask_id=3, ids=ids)
    given = {} if embeds else {"embedded": rows_of([8, 3, 3, 3, 3])}
    out = run(found, anchor=ints(8), **given)
    proposal = following(3) if ids is None else ids[following(3)]
    assert out["block"].tolist() == [[8, *[proposal] * (ROWS - 1)]]
    assert following(3) == 2, "the lowest of equals"
