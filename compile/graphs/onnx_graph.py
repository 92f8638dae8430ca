"""A traced graph as an onnx-ir model: names as the signature says, semantic nodes kept, weights by name only.

The model is not valid ONNX until a lowering has replaced its "dflash" nodes and binding has given its initializers
values.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import onnxscript.optimizer
import torch

from dflash_compile.export.tracing.graph import Graph, WeightRef

from .semantics import translations

OPSET = 24


@dataclass
class SemanticModel:
    """An ONNX graph whose weights are still references into checkpoints. Passes change it in place."""

    model: ir.Model
    weights: dict[str, WeightRef]
    """initializer name → the tensor it stands for, in the checkpoint's own layout"""

    def copy(self) -> SemanticModel:
        """The same graph, to be changed on its own."""
        return SemanticModel(self.model.clone(), dict(self.weights))


def to_onnx(graph: Graph) -> SemanticModel:
    """`graph` in ONNX, opset 24 and the domain "dflash", shape arithmetic folded. No weight has a value."""
    with _quiet():
        exported = torch.onnx.export(
            graph.program,
            dynamo=True,
            optimize=False,
            opset_version=OPSET,
            custom_translation_table=translations(),
            verbose=False,
        )
    assert exported is not None
    model = exported.model
    _forget_origins(model)
    _name_ports(model, graph)
    weights = _detach_weights(model, graph)
    # The optimizer folds constants and complains of initializers that have no value; it leaves inputs alone.
    onnxscript.optimizer.optimize_ir(model, onnx_shape_inference=False)
    _weights_as_initializers(model, weights)
    return SemanticModel(model, weights)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of torchvision, which no language model needs, and of its own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _forget_origins(model: ir.Model) -> None:
    """Drop what the exporter notes about sources: it names paths of this machine."""
    model.producer_name = model.producer_version = model.doc_string = None
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()


def _name_ports(model: ir.Model, graph: Graph) -> None:
    """Give inputs, outputs and free dimensions the signature's names."""
    symbols: dict[str, str] = {}
    for values, ports in ((model.graph.inputs, graph.signature.inputs), (model.graph.outputs, graph.signature.outputs)):
        for value, port in zip(values, ports, strict=True):
            value.name = port.name
            for found, wanted in zip(value.shape or (), port.shape, strict=True):
                if isinstance(found, ir.SymbolicDim) and isinstance(wanted, str):
                    symbols.setdefault(str(found.value), wanted)
            value.shape = ir.Shape(port.shape)
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None and not value.is_graph_output():
                value.shape = ir.Shape(
                    [symbols.get(str(d.value), d.value) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
                )


def _detach_weights(model: ir.Model, graph: Graph) -> dict[str, WeightRef]:
    """Give constants their real values and turn weights into graph inputs named after their tensors, each once."""
    initializers = model.graph.initializers
    weights: dict[str, WeightRef] = {}
    kept: dict[str, ir.Value] = {}
    for value in list(initializers.values()):
        assert value.name is not None
        if value.name in graph.constants:
            value.const_value = ir.tensor(graph.constants[value.name].numpy(), name=value.name)
        elif value.name in graph.weights:
            ref = graph.weights[value.name]
            name = f"{ref.owner}.{ref.tensor}"
            del initializers[value.name]
            if name in kept:
                value.replace_all_uses_with(kept[name])
                continue
            value.const_value, value.name = None, name
            kept[name], weights[name] = value, ref
    model.graph.inputs.extend(kept.values())
    return weights


def _weights_as_initializers(model: ir.Model, weights: dict[str, WeightRef]) -> None:
    for value in [value for value in model.graph.inputs if value.name in weights]:
        model.graph.inputs.remove(value)
        model.graph.initializers.add(value)
