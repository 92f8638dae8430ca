"""The ONNX Runtime form: its fused attention, norms and block-quantised products, for its CPU and CUDA providers."""

from __future__ import annotations

from dflash_compile.export.tracing.graph import Graph

from ..graphs import rings, standard
from ..graphs.edit import eliminate_dead_nodes
from ..graphs.linear import linear
from ..graphs.lowered import Lowered, WeightBindings
from ..graphs.onnx_graph import to_onnx
from ..graphs.positions import Positions
from .attention import group_query_attention
from .experts import quantised_experts
from .norms import simplified_norms, skip_norms
from .packed_qkv import packed_projections
from .precision import Precision
from .weights import weighted_embeddings, weighted_linears


def lower(graph: Graph, precision: Precision) -> Lowered:
    """`graph` in ONNX Runtime's operators, its weights at `precision`.

    What no kernel expresses takes the standard form.
    """
    semantic = to_onnx(graph)
    model = semantic.model
    bindings = WeightBindings(semantic)
    positions = Positions(model)
    linear(model)
    group_query_attention(model, positions)
    eliminate_dead_nodes(model)
    packed_projections(semantic)
    skip_norms(model)
    simplified_norms(model)
    weighted_linears(model, bindings, precision)
    weighted_embeddings(model, bindings, precision)
    quantised_experts(model, bindings, precision)
    standard.standard_rotary(model, positions)
    standard.standard_attention(model, positions)
    standard.standard_writes(model, positions)
    rings.ring_attention(model, positions)
    rings.ring_writes(model, positions)
    eliminate_dead_nodes(model)
    return Lowered(graph.signature, model, bindings.finish())
