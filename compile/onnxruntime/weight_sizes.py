"""Bytes of weights as ONNX Runtime's engines store them, from names and shapes alone.

The rules are those of `weights.py`: products are encoded, tables are half floats, everything else stays float32.
"""

from __future__ import annotations

from collections.abc import Mapping

from dflash_compile.export.dflash.shapes import module_shapes
from dflash_compile.export.outline import TargetOutline
from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.spec import DrafterSpec, TargetSpec
from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.export.tracing.trace import EXACT

from ..graphs.encoding import Encoding, Floats, Shape
from .expert_weights import ExpertGroups, expert_blocks
from .precision import Precision

_TABLES = (".predecessor_codebook", ".successor_codebook")
_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")
_INJECTED = ("fc.", "hidden_norm.")
_CONTEXT = (".k_proj.", ".v_proj.", ".k_norm.")
"""of every draft layer, in both of the drafter's graphs"""


def target_bytes(outline: TargetOutline, precision: Precision) -> int:
    """Of the target's engine. A tied head is stored beside the embedding where it has another precision."""
    weights = {name: shape for name, shape in outline.shapes.items() if name not in (EMBEDDING, HEAD)}
    table = outline.shapes[EMBEDDING]
    blocks = sparse_blocks(outline, precision)
    experts = {name: shape for name, shape in weights.items() if blocks is not None and name.endswith(_EXPERTS)}
    rest = {name: shape for name, shape in weights.items() if name not in experts}
    mixtures = 0 if blocks is None else sum(_stored(blocks, shape) for shape in experts.values())
    return (
        mixtures + _graph(rest, precision) + _ends(table, outline.shapes.get(HEAD, table), precision, outline.spec.tied)
    )


def sparse_blocks(outline: TargetOutline, precision: Precision) -> ExpertGroups | None:
    """How experts are stored that run in the sparse form; None for those that do not."""
    return expert_blocks(outline.config, precision) if outline.sparse_experts else None


def drafter_bytes(spec: DrafterSpec, target: TargetSpec, precision: Precision) -> int:
    """Of the inject and the draft engine, each with the weights it reads, and the draft engine with embedding and head
    of its own.
    """
    shapes = module_shapes(spec, len(spec.taps) * target.hidden, target.vocab)
    inject = {
        name: shape
        for name, shape in shapes.items()
        if name.startswith(_INJECTED) or any(part in name for part in _CONTEXT)
    }
    draft = {name: shape for name, shape in shapes.items() if not name.startswith(_INJECTED)}
    shared = target.tied and spec.draft_vocab is None and not spec.own_embedding
    ends = _ends((target.vocab, spec.hidden), (spec.draft_vocab or target.vocab, spec.hidden), precision, shared)
    return _graph(inject, precision) + _graph(draft, precision) + ends


def _ends(table: Shape, head: Shape, precision: Precision, tied: bool) -> int:
    """Of an embedding and a head; those that are one tensor are stored once where both are stored alike."""
    looked_up, multiplied = precision.embedding(), precision.linear(WeightRef("target", HEAD), head, head=True)
    return _stored(looked_up, table) + (0 if tied and looked_up == multiplied else _stored(multiplied, head))


def _graph(weights: Mapping[str, Shape], precision: Precision) -> int:
    return sum(_stored(_encoding(name, shape, precision), shape) for name, shape in weights.items())


def _encoding(name: str, shape: Shape, precision: Precision) -> Encoding:
    if name.endswith(_TABLES):
        return precision.embedding()
    if len(shape) == 2 and name.endswith(".weight"):
        return precision.linear(WeightRef("drafter", name, exact=name in EXACT), shape, head=False)
    return Floats()


def _stored(encoding: Encoding, shape: Shape) -> int:
    return sum(part.bytes for part in encoding.parts(shape))
