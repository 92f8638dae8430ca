"""One attention at a time in TensorRT's operators, run by ONNX Runtime: every kind of mask, grouped heads folded or
not, against torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from forms import quiet

from dflash_compile.compile.graphs.edit import eliminate_dead_nodes
from dflash_compile.compile.graphs.positions import Positions
from dflash_compile.compile.graphs.semantics import DOMAIN
from dflash_compile.compile.graphs.static_positions import StaticPositions
from dflash_compile.compile.tensorrt.attention import lower_attention, lower_writes
from dflash_compile.compile.tensorrt.builder import Request, build_plan
from dflash_compile.compile.tensorrt.engine_info import inspect_plan
from dflash_compile.compile.tensorrt.functions import add_functions
from dflash_compile.compile.tensorrt.lint import lint
from dflash_compile.export.ops.semantic import kv_attention, kv_write

HEADS, KV, ROWS, LENGTH, WIDTH = 6, 2, 4, 24, 8
SHAPES = (
    {"q": (1, HEADS, ROWS, WIDTH)}
    | dict.fromkeys(("k", "v"), (1, KV, ROWS, WIDTH))
    | dict.fromkeys(("k_cache", "v_cache"), (1, KV, LENGTH, WIDTH))
)


def model(op: str, inputs: tuple[str, ...], outputs: dict[str, tuple[int, ...]], **attributes: float) -> ir.Model:
    """A graph of one semantic node."""
    float32, int32 = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.INT32)
    tokens = ir.Value(name="tokens", type=int32, shape=ir.Shape([1, ROWS]))
    ports = {
        name: ir.Value(name=name, type=float32, shape=ir.Shape(SHAPES.get(name, (HEADS,))))
        for name in inputs
        if name != "position"
    }
    ports["position"] = ir.Value(name="position", type=int32, shape=ir.Shape([1]))
    node = ir.node(
        op, [ports[name] for name in inputs], attributes, domain=DOMAIN, num_outputs=len(outputs), name="attend"
    )
    for value, (name, shape) in zip(node.outputs, outputs.items(), strict=True):
        value.name, value.type, value.shape = name, float32, ir.Shape(shape)
    graph = ir.Graph([tokens, *ports.values()], list(node.outputs), nodes=[node], opset_imports={"": 24}, name="one")
    return ir.Model(graph, ir_version=10)


def run(found: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    eliminate_dead_nodes(found)
    add_functions(found)
    assert lint(found) == []
    session = onnxruntime.InferenceSession(ir.to_proto(found).SerializeToString(), quiet())
    outputs: list[np.ndarray] = session.run(None, feeds | {"tokens": np.zeros((1, ROWS), np.int32)})
    return outputs


def values(position: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(position)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()} | {
        "position": np.array([position], np.int32)
    }


ATTENDED = {"out": SHAPES["q"], "ko": SHAPES["k_cache"], "vo": SHAPES["v_cache"]}


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize(
    ("window", "causal", "anchored"),
    [(0, True, False), (0, False, False), (5, True, False), (5, False, False), (5, False, True)],
)
def test_attention_is_the_semantic_operator_s(window: int, causal: bool, anchored: bool, folds: bool) -> None:
    op = "KVAnchoredAttention" if anchored else "KVAttention"
    for position in (0, 3, LENGTH - ROWS):
        found = model(op, (*SHAPES, "position"), ATTENDED, scale=0.3, window=window, causal=int(causal))
        lower_attention(found, StaticPositions(found), ir.DataType.FLOAT, folds)
        feeds = values(position)
        expected = kv_attention(
            *(torch.from_numpy(feeds[name]) for name in (*SHAPES, "position")), 0.3, window, causal, anchored
        )
        for real, wanted in zip(run(found, feeds), expected, strict=True):
            np.testing.assert_allclose(real, wanted.numpy(), atol=2e-5)


def test_a_write_is_the_semantic_operator_s() -> None:
    found = model("KVWrite", ("k", "k_cache", "position"), {"ko": SHAPES["k_cache"]})
    lower_writes(found, StaticPositions(found), ir.DataType.FLOAT)
    feeds = {name: value for name, value in values(7).items() if name in ("k", "k_cache", "position")}
    (written,) = run(found, feeds)
    np.testing.assert_array_equal(
        written, kv_write(*(torch.from_numpy(feeds[name]) for name in ("k", "k_cache", "position"))).numpy()
    )


@pytest.mark.parametrize("window", [0, 5])
def test_attention_with_sinks_compiles(window: int, tmp_path: Path) -> None:
    found = model("KVSinkAttention", (*SHAPES, "position", "sinks"), ATTENDED, scale=0.3, window=window, causal=1)
    lower_attention(found, StaticPositions(found), ir.DataType.FLOAT, folds=False)
    eliminate_dead_nodes(found)
    ir.save(found, tmp_path / "one.onnx")
    caches = (("k_cache", "ko"), ("v_cache", "vo"))
    request = Request(
        "tensorrt_rtx",
        str(tmp_path / "one.onnx"),
        str(tmp_path / "one.plan"),
        "SM89",
        caches,
        attentions=0,
        mark_queries=True,
    )
    build_plan(request)
    plan = inspect_plan(tmp_path / "one.plan", SHAPES["k_cache"])
    assert (plan.fused_attention, plan.capturable) == (0, True)


@pytest.mark.parametrize("positions", [StaticPositions, Positions])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.FLOAT16])
def test_attention_with_sinks_is_the_semantic_operator_s(
    window: int, dtype: ir.DataType, positions: type[Positions]
) -> None:
    for position in (0, 3, LENGTH - ROWS):
        found = model("KVSinkAttention", (*SHAPES, "position", "sinks"), ATTENDED, scale=0.3, window=window, causal=1)
        caches = [
            value
            for value in (*found.graph.inputs, *found.graph.outputs)
            if value.name in ("k_cache", "v_cache", "ko", "vo")
        ]
        lower_attention(found, positions(found), dtype, folds=False)
        for value in [*caches, *(value for value in found.graph.outputs if value.name in ("ko", "vo"))]:
            value.type = ir.TensorType(dtype)
        feeds = values(position) | {"sinks": np.linspace(-2, 3, HEADS, dtype=np.float32)}
        given = feeds | {name: feeds[name].astype(dtype.numpy()) for name in ("k_cache", "v_cache")}
        inputs = [torch.from_numpy(feeds[name]) for name in (*SHAPES, "position")]
        expected = kv_attention(*inputs, 0.3, window, True, sinks=torch.from_numpy(feeds["sinks"]))
        for real, wanted in zip(run(found, given), expected, strict=True):
            np.testing.assert_allclose(
                real.astype(np.float32), wanted.numpy(), atol=2e-5 if dtype == ir.DataType.FLOAT else 5e-3
            )
