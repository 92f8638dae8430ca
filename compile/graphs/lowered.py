"""A lowered graph: a model some runtime can read, whose weights still wait to be bound."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.export.tracing.signature import Signature

from .encoding import Encoding, Floats, Shape, StoredArray
from .onnx_graph import SemanticModel


@dataclass(frozen=True)
class StackedWeight(WeightRef):
    """Tensors of one checkpoint, one above the other, as one weight; `tensor` is a name for all of them."""

    pieces: tuple[tuple[str, int], ...] = ()
    """each tensor and its rows, from the top"""


def pieces(ref: WeightRef, rows: int) -> tuple[tuple[str, int], ...]:
    """The tensors that make up a weight of `rows` rows, each with its own rows, from the top."""
    return ref.pieces if isinstance(ref, StackedWeight) else ((ref.tensor, rows),)


@dataclass(frozen=True)
class WeightBinding:
    """What fills one initializer: part number `part` of a checkpoint tensor, or of several stacked, under an
    encoding.
    """

    ref: WeightRef
    encoding: Encoding
    shape: Shape
    """of the checkpoint tensor, or of the stack"""
    part: int = 0

    @property
    def stored(self) -> StoredArray:
        """The array to be stored."""
        return self.encoding.parts(self.shape)[self.part]


@dataclass(frozen=True)
class Lowered:
    """A model in a back-end's operators and the binding of each of its initializers that has no value yet."""

    signature: Signature
    model: ir.Model
    bindings: dict[str, WeightBinding]


class WeightBindings:
    """Collects bindings while passes run: gives a weight its encoding and the initializers for its parts."""

    def __init__(self, semantic: SemanticModel) -> None:
        self.model, self.weights = semantic.model, semantic.weights
        self.encoded: dict[str, WeightBinding] = {}

    def encode(self, weight: ir.Value, encoding: Encoding) -> list[ir.Value]:
        """The initializers that hold `weight` under `encoding`, made on first use."""
        return [
            self._initializer(weight, encoding, index) for index in range(len(encoding.parts(static_shape(weight))))
        ]

    def _initializer(self, weight: ir.Value, encoding: Encoding, index: int) -> ir.Value:
        binding = WeightBinding(self.weights[str(weight.name)], encoding, static_shape(weight), index)
        if encoding == Floats():
            self.encoded[str(weight.name)] = binding
            return weight
        part = binding.stored
        name = f"{weight.name}{part.suffix or '.' + part.dtype.name.lower()}"
        if name not in self.encoded:
            value = ir.Value(name=name, shape=ir.Shape(part.shape), type=ir.TensorType(part.dtype))
            self.model.graph.initializers.add(value)
            self.encoded[name] = binding
        return self.model.graph.initializers[name]

    def finish(self) -> dict[str, WeightBinding]:
        """The binding of every initializer of the model that has no value; what no pass encoded is stored as
        float32.
        """
        empty = [value for value in self.model.graph.initializers.values() if value.const_value is None]
        return {
            str(value.name): (
                self.encoded.get(str(value.name))
                or WeightBinding(self.weights[str(value.name)], Floats(), static_shape(value))
            )
            for value in empty
        }


def static_shape(weight: ir.Value) -> Shape:
    """The shape of a weight, all of whose sizes are known."""
    assert weight.shape is not None
    return tuple(weight.shape.numpy())
