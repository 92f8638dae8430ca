"""The ONNX Runtime form: its fused attention, norms and block-quantised products, for its CPU and CUDA providers."""

from __future__ import annotations

from dflash_compile.export.graph import Graph

from ..lowered import Lowered, Payloads
from ..onnx_graph import to_onnx
from ..passes import rings, standard
from ..passes.edit import tidy
from ..passes.linear import linear
from ..passes.ort_attention import group_query_attention
from ..passes.ort_experts import quantised_experts
from ..passes.ort_norms import simplified_norms, skip_norms
from ..passes.ort_packed import packed_projections
from ..passes.ort_weights import weighted_embeddings, weighted_linears
from ..passes.positions import Positions
from ..precision import Precision


def lower(graph: Graph, precision: Precision) -> Lowered:
    """`graph` in ONNX Runtime's operators, its weights at `precision`. What no kernel expresses takes the standard form."""
    semantic = to_onnx(graph)
    model = semantic.model
    payloads = Payloads(semantic)
    positions = Positions(model)
    linear(model)
    group_query_attention(model, positions)
    tidy(model)
    packed_projections(semantic)
    skip_norms(model)
    simplified_norms(model)
    weighted_linears(model, payloads, precision)
    weighted_embeddings(model, payloads, precision)
    quantised_experts(model, payloads, precision)
    standard.standard_rotary(model, positions)
    standard.standard_attention(model, positions)
    standard.standard_writes(model, positions)
    rings.ring_attention(model, positions)
    rings.ring_writes(model, positions)
    tidy(model)
    return Lowered(graph.signature, model, payloads.finish())
