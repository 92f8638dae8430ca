"""The portable form: standard opset 24 and nothing else, in float32. The fallback, and what other tools read."""

from __future__ import annotations

from dflash_compile.export.tracing.graph import Graph

from . import rings, standard
from .edit import eliminate_dead_nodes
from .linear import linear
from .lowered import Lowered, WeightBindings
from .onnx_graph import to_onnx
from .positions import Positions


def lower(graph: Graph) -> Lowered:
    """`graph` in standard operators."""
    semantic = to_onnx(graph)
    model = semantic.model
    bindings = WeightBindings(semantic)
    positions = Positions(model)
    linear(model)
    standard.standard_linears(model)
    standard.standard_norms(model)
    standard.standard_rotary(model, positions)
    standard.standard_attention(model, positions)
    standard.standard_writes(model, positions)
    rings.ring_attention(model, positions)
    rings.ring_writes(model, positions)
    eliminate_dead_nodes(model)
    return Lowered(graph.signature, model, bindings.finish())
