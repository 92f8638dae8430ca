"""Binding: what lands in the data file, in which order, how much of it is in memory, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from dflash_compile.compile.graphs import bind as binding
from dflash_compile.compile.graphs.bind import ALIGNMENT, bind, size_of, take_over
from dflash_compile.compile.graphs.encoding import Encoding, Floats
from dflash_compile.compile.graphs.lowered import Lowered, StackedWeight, WeightBinding
from dflash_compile.compile.onnxruntime.quantize import IntGroups
from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.runtime.errors import BuildError

TABLE = np.arange(2000, dtype=np.float32)
WEIGHTS = {"a": torch.randn(37, 64), "b": torch.randn(5)}


class Counting:
    """A source that remembers how much it was asked for at once."""

    def __init__(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.weights, self.reads = weights, list[tuple[str, int]]()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(value.shape) for name, value in self.weights.items()}

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        self.reads.append((name, stop - start))
        return self.weights[name][start:stop]


def lowered(*wanted: tuple[str, Encoding]) -> Lowered:
    """A graph of nothing but initializers."""
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 24}, name="g")
    bindings = {}
    for name, encoding in wanted:
        shape = tuple(WEIGHTS[name].shape)
        for index, part in enumerate(encoding.parts(shape)):
            key = f"{name}{part.suffix}"
            graph.initializers.add(ir.Value(name=key, shape=ir.Shape(part.shape), type=ir.TensorType(part.dtype)))
            bindings[key] = WeightBinding(WeightRef("target", name), encoding, shape, index)
    graph.initializers.add(
        ir.Value(
            name="table",
            const_value=ir.tensor(TABLE, name="table"),
            shape=ir.Shape(TABLE.shape),
            type=ir.TensorType(ir.DataType.FLOAT),
        )
    )
    return Lowered(Signature("target", (), ()), ir.Model(graph, ir_version=11), bindings)


def read(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_every_part_is_found_at_its_place(tmp_path: Path) -> None:
    encoding = IntGroups(4, 32)
    form = lowered(("a", encoding), ("b", Floats()))
    stored = size_of(form)
    found = read(bind(form, {"target": Counting(WEIGHTS)}, tmp_path, "g.onnx"))
    for part, wanted in zip(encoding.parts((37, 64)), encoding.encode(WEIGHTS["a"]), strict=True):
        np.testing.assert_array_equal(found[f"a{part.suffix}"], wanted)
    np.testing.assert_array_equal(found["b"], WEIGHTS["b"].numpy())
    np.testing.assert_array_equal(found["table"], TABLE)
    assert stored <= (tmp_path / "g.onnx.data").stat().st_size < stored + len(found) * ALIGNMENT


def test_references_are_relative_and_aligned(tmp_path: Path) -> None:
    path = bind(lowered(("a", IntGroups(8, 64)), ("b", Floats())), {"target": Counting(WEIGHTS)}, tmp_path, "g.onnx")
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        where = {entry.key: entry.value for entry in tensor.external_data}
        assert where["location"] == "g.onnx.data"
        assert int(where["offset"]) % ALIGNMENT == 0
    assert str(tmp_path).encode() not in path.read_bytes()


def test_a_tensor_passes_in_chunks_and_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "CHUNK_BYTES", 10 * 64 * 4)
    source = Counting(WEIGHTS)
    found = read(bind(lowered(("a", IntGroups(4, 32))), {"target": source}, tmp_path, "g.onnx"))
    assert source.reads == [("a", 10), ("a", 10), ("a", 10), ("a", 7)]
    np.testing.assert_array_equal(found["a.int4"], IntGroups(4, 32).encode(WEIGHTS["a"])[0])


STACK = StackedWeight("target", "a+c", pieces=(("a", 37), ("c", 20)))


def stacked(encoding: Encoding) -> Lowered:
    """One initializer for each part of `a` above `c`."""
    form = lowered()
    for index, part in enumerate(encoding.parts((57, 64))):
        form.model.graph.initializers.add(
            ir.Value(name=f"s{part.suffix}", shape=ir.Shape(part.shape), type=ir.TensorType(part.dtype))
        )
        form.bindings[f"s{part.suffix}"] = WeightBinding(STACK, encoding, (57, 64), index)
    return form


@pytest.mark.parametrize("encoding", [Floats(), IntGroups(8, 64), IntGroups(4, 32)])
def test_a_stack_is_its_tensors_one_above_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: Encoding
) -> None:
    monkeypatch.setattr(binding, "CHUNK_BYTES", 15 * 64 * 4)
    weights = WEIGHTS | {"c": torch.randn(20, 64)}
    source, steps, form = Counting(weights), list[int](), stacked(encoding)
    found = read(bind(form, {"target": source}, tmp_path, "g.onnx", steps.append))
    for part, wanted in zip(
        encoding.parts((57, 64)), encoding.encode(torch.cat([weights["a"], weights["c"]])), strict=True
    ):
        np.testing.assert_array_equal(found[f"s{part.suffix}"], wanted)
    assert source.reads == [("a", 15), ("a", 15), ("a", 7), ("c", 15), ("c", 5)]
    assert sum(steps) == size_of(form)


@pytest.mark.parametrize("weights", [WEIGHTS, WEIGHTS | {"c": torch.randn(21, 64)}])
def test_a_stack_with_a_wrong_tensor_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(BuildError, match="tensor 'c'"):
        bind(stacked(Floats()), {"target": Counting(weights)}, tmp_path, "g.onnx")


def test_progress_adds_up_to_every_byte_written(tmp_path: Path) -> None:
    steps: list[int] = []
    form = lowered(("a", Floats()), ("b", Floats(half=True)))
    total = size_of(form)
    bind(form, {"target": Counting(WEIGHTS)}, tmp_path, "g.onnx", steps.append)
    assert sum(steps) == total


@pytest.mark.parametrize("encoding", [Floats(), Floats(half=True), IntGroups(8, 32), IntGroups(4, 32)])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e5])
def test_a_number_that_an_engine_cannot_hold_is_refused(tmp_path: Path, encoding: Encoding, number: float) -> None:
    weights = {"a": WEIGHTS["a"].clone()}
    weights["a"][20, 40] = number
    if number == 1e5 and encoding != Floats(half=True):
        bind(lowered(("a", encoding)), {"target": Counting(weights)}, tmp_path, "g.onnx")
        return
    with pytest.raises(BuildError, match="not finite"):
        bind(lowered(("a", encoding)), {"target": Counting(weights)}, tmp_path, "g.onnx")


@pytest.mark.parametrize("weights", [{}, {"a": torch.randn(36, 64)}])
def test_a_tensor_of_another_shape_is_refused(tmp_path: Path, weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(BuildError, match="tensor 'a'"):
        bind(lowered(("a", Floats())), {"target": Counting(weights)}, tmp_path, "g.onnx")


def test_a_second_form_takes_over_what_the_first_one_encoded(tmp_path: Path) -> None:
    source, first, second = Counting(WEIGHTS), *(lowered(("a", IntGroups(8, 64))) for _ in range(2))
    found = read(bind(first, {"target": source}, tmp_path, "first"))
    assert source.reads
    source.reads.clear()
    rest = take_over(second, first.model)
    assert rest.bindings == {}
    again = read(bind(rest, {"target": source}, tmp_path, "second"))
    assert source.reads == [], "nothing is encoded again"
    assert found.keys() == again.keys()
    assert all(np.array_equal(found[name], again[name]) for name in found)
    assert (tmp_path / "second.data").stat().st_size < (tmp_path / "first.data").stat().st_size
