"""Tracing: a checkpoint's spec and config in, a weightless graph out. Reads no weight.

The model is built and traced with fake tensors, so its size in memory is that of its Python objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from transformers import AutoModelForCausalLM

from .checkpoint import TargetCheckpoint
from .families import family_of
from .graph import Graph, WeightRef
from .hooks import hooked
from .rope import rotary_tables
from .signature import Port, Signature, target_signature
from .target import VerificationTarget

_DTYPES = {"float32": torch.float32, "int32": torch.int32}
# Any size but 0 and 1, which torch.export would take for constants.
_EXAMPLE_ROWS = 4


def _example(port: Port) -> torch.Tensor:
    shape = [_EXAMPLE_ROWS if isinstance(size, str) else size for size in port.shape]
    return torch.zeros(shape, dtype=_DTYPES[port.dtype])


def _export(module: torch.nn.Module, signature: Signature, fake: FakeTensorMode) -> torch.export.ExportedProgram:
    """`module` as a program with `signature`'s inputs; symbols of the signature stay free."""
    dims = {size: Dim(size, min=1) for port in signature.inputs for size in port.shape if isinstance(size, str)}
    shapes = [{axis: dims[size] for axis, size in enumerate(port.shape) if isinstance(size, str)} for port in signature.inputs]
    with fake:
        inputs = tuple(_example(port) for port in signature.inputs)
    named = len(inputs) - len(signature.caches)
    dynamic = (*shapes[:named], tuple(shapes[named:]))
    return export(module, inputs, dynamic_shapes=dynamic)


def trace_target(checkpoint: TargetCheckpoint, taps: Sequence[int], context: int, rows: int | None = None) -> Graph:
    """The target in verification mode, over a cache of `context` rows.

    `rows` is the static width, also of `pick`, or None for a free one. Raises `IncompatibleError` for a family that has
    no file in `families/`.
    """
    spec = checkpoint.spec
    family = family_of(spec.family)
    static = () if rows is None else (rows, rows)
    signature = target_signature(spec.layers, spec.kv_heads, spec.head_dim, context, spec.vocab, len(taps) * spec.hidden, *static)
    fake = FakeTensorMode()
    with fake:
        model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.float32).eval()
    cos, sin = rotary_tables(type(model.get_decoder().rotary_emb), checkpoint.config, context)
    with hooked(model, family, taps) as hooks, torch.no_grad():
        module = VerificationTarget(model, hooks, taps, fake.from_tensor(cos), fake.from_tensor(sin))
        program = _export(module, signature, fake)
    prefix = "model."
    weights = {name: WeightRef("target", name.removeprefix(prefix)) for name in program.graph_signature.parameters}
    if spec.tied:
        embedding = WeightRef("target", "model.embed_tokens.weight")
        weights = {name: embedding if ref.tensor == "lm_head.weight" else ref for name, ref in weights.items()}
    tables = {"cos": cos, "sin": sin}
    return Graph(signature, program, weights, {name: tables[name.rpartition(".")[2]] for name in program.graph_signature.buffers})
