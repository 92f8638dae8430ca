"""The TensorRT form: caches updated in place by its own layers, acceptance inside the graph, every size fixed.

Products, attention and caches are in the compute dtype; the residual, norms, rotary embedding and everything else stay
in float32. The model carries bodies of TensorRT's operators in standard ones, so that ONNX Runtime runs the same file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from dflash_compile.export.tracing.signature import Signature

from ..graphs import standard
from ..graphs.casts import fold_casts
from ..graphs.edit import eliminate_dead_nodes
from ..graphs.linear import linear
from ..graphs.lowered import Lowered, WeightBindings
from ..graphs.onnx_graph import SemanticModel
from ..graphs.positions import Positions
from ..graphs.static_positions import StaticPositions
from .attention import lower_attention, lower_writes
from .functions import add_functions
from .ports import retype
from .precisions import Precision
from .tables import Table, lower_tables
from .weights import lower_embeddings, lower_linears


@dataclass(frozen=True)
class Form:
    """What depends on the architecture and on the bundle."""

    precision: Precision
    folds: bool
    """query heads that share a key head become rows: see `Architecture.folds`"""
    tables: tuple[Table, ...] = ()
    """those that are inputs"""


Ports = Callable[[ir.Model], None]
"""gives a model the inputs and outputs of its role: one of `ports.py`"""


def is_free(signature: Signature) -> bool:
    """Whether the row count is left to the engine's profiles."""
    return any(isinstance(size, str) for port in signature.inputs for size in port.shape)


def lower(semantic: SemanticModel, form: Form, signature: Signature, ports: Ports = lambda _: None) -> Lowered:
    """A graph in TensorRT's operators behind `signature`, traced at one width or, for an engine of several, at any.

    `semantic` is changed.
    """
    model, precision = semantic.model, form.precision
    bindings = WeightBindings(semantic)
    # Before tables are taken apart: it looks for what is embedded.
    positions = _positions(model, signature)
    linear(model)
    lower_tables(model, bindings, form.tables)
    lower_linears(model, bindings, precision)
    lower_embeddings(model, bindings, precision)
    if positions is not None:
        lower_attention(model, positions, precision.compute, form.folds)
        lower_writes(model, positions, precision.compute)
        standard.standard_rotary(model, positions)
    standard.standard_norms(model)
    ports(model)
    retype(model, signature)
    fold_casts(model)
    eliminate_dead_nodes(model)
    add_functions(model)
    return Lowered(signature, model, bindings.finish())


def _positions(model: ir.Model, signature: Signature) -> Positions | None:
    if all(port.name != "position" for port in model.graph.inputs):
        return None
    return Positions(model) if is_free(signature) else StaticPositions(model)
