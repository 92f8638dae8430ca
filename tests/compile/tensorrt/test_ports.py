"""Acceptance and choices inside the graph, against the runtime's own acceptance, on a model that is one look-up
table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from forms import quiet

from dflash_compile.compile.graphs.edit import Editor, eliminate_dead_nodes
from dflash_compile.compile.tensorrt.ports import draft_ports, prefill_ports, verify_ports
from dflash_compile.runtime.acceptance import accept_greedy

VOCAB, ROWS = 13, 5
TABLE = np.random.default_rng(0).standard_normal((VOCAB, VOCAB)).astype(np.float32)
TABLE[3, [2, 7]] = 9  # two largest logits that are equal


def model(first: str, last: bool = False) -> ir.Model:
    """Inputs `first` [1, S], position, and pick unless `last`; logits of row i are `TABLE`'s for its token."""

    def port(name: str, shape: list[int]) -> ir.Value:
        return ir.Value(name=name, type=ir.TensorType(ir.DataType.INT32), shape=ir.Shape(shape))

    inputs = [port(first, [1, ROWS]), port("position", [1])] + ([] if last else [port("pick", [1])])
    found = ir.Model(ir.Graph(inputs, [], nodes=[], opset_imports={"": 24}, name="table"), ir_version=10)
    edit = Editor(found, None, "model")
    rows = (
        edit.one("Gather", [inputs[0], inputs[2]], {"axis": 1})
        if not last
        else edit.one("Slice", [inputs[0], *(edit.constant(np.array([n])) for n in (1, ROWS, 1))])
    )
    logits = edit.one("Gather", [edit.constant(TABLE), rows], {"axis": 0})
    logits.name, logits.type, logits.shape = "logits", ir.TensorType(ir.DataType.FLOAT), ir.Shape([1, None, VOCAB])
    found.graph.outputs.append(logits)
    return found


def run(found: ir.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    for value in found.graph.outputs:
        value.type, value.shape = ir.TensorType(ir.DataType.INT32), None
    eliminate_dead_nodes(found)
    proto = ir.to_proto(found)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), quiet())
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def following(token: int) -> int:
    return int(TABLE[token].argmax())


@pytest.mark.parametrize("right", range(ROWS))
def test_acceptance_is_the_runtime_s(right: int) -> None:
    found = model("tokens")
    verify_ports(found, ROWS)
    for anchor in range(VOCAB):
        block = [anchor]
        while len(block) < ROWS:
            block.append(following(block[-1]) if len(block) <= right else (following(block[-1]) + 1) % VOCAB)
        out = run(found, block=ints(*block)[None], position=ints(40))
        choices = [following(token) for token in block]
        expected = accept_greedy(block[1:], choices)
        assert out["tokens"][0].tolist() == choices
        assert expected.accepted == right
        assert (out["accepted"].tolist(), out["bonus"].tolist()) == ([right], [expected.bonus])
        assert out["next_position"].tolist() == [41 + right]


def test_a_match_behind_a_mismatch_does_not_count() -> None:
    found = model("tokens")
    verify_ports(found, ROWS)
    wrong = (following(1) + 1) % VOCAB
    out = run(found, block=ints(1, wrong, following(wrong), 0, 0)[None], position=ints(0))
    assert (out["accepted"].tolist(), out["bonus"].tolist()) == ([0], [following(1)])


def test_prefill_chooses_after_the_last_row_that_counts() -> None:
    found = model("tokens")
    prefill_ports(found)
    for valid in range(1, ROWS + 1):
        out = run(found, tokens=ints(3, 1, 4, 5, 9)[None], position=ints(0), valid=ints(valid))
        assert out["next_token"].tolist() == [following([3, 1, 4, 5, 9][valid - 1])]


@pytest.mark.parametrize("ids", [None, tuple(range(50, 50 + VOCAB))])
def test_a_draft_s_block_starts_with_the_anchor_and_holds_the_target_s_ids(ids: tuple[int, ...] | None) -> None:
    found = model("block", last=True)
    draft_ports(found, ROWS, mask_id=3, ids=ids)
    out = run(found, anchor=ints(8), position=ints(0))
    proposal = following(3) if ids is None else ids[following(3)]
    assert out["block"].tolist() == [[8, *[proposal] * (ROWS - 1)]]
    assert following(3) == 2, "the lowest of equals"
