"""Tracing: specs and a config in, weightless graphs out. Reads no weight.

Models are built and traced with fake tensors, so a graph's size in memory is that of its Python objects.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export

from ..checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from ..dflash.v1 import DflashV1
from ..dflash.v2 import draft_module
from ..families import PLACEHOLDERS, family_of
from ..parameter_names import EMBEDDING, HEAD
from ..spec import DrafterSpec, TargetSpec
from .draft_graphs import DraftBody, DraftGraph, InjectGraph, semantic_norms
from .graph import Graph, WeightRef
from .hooks import hooked
from .refinement import RefinedDraft
from .rope import RotaryTables, drafter_tables, rotary_tables
from .signature import Dim as Size
from .signature import (
    Port,
    Signature,
    draft_signature,
    embed_signature,
    head_signature,
    inject_signature,
    target_signature,
    without_head,
    without_table,
)
from .target import EmbedsTarget, TargetBody, TargetHead, TargetTable, VerificationTarget
from .windows import cache_rows, draft_cache_rows, layer_windows

_DTYPES = {"float32": torch.float32, "int32": torch.int32}
# Any size but 0 and 1, which torch.export would take for constants.
_EXAMPLE_ROWS = 4
# Their products reach thousands, and everything the drafter sees passes through them.
EXACT = ("fc.weight", "hidden_norm.weight")


def trace_target(
    checkpoint: TargetCheckpoint,
    taps: Sequence[int],
    context: int,
    rows: int | None = None,
    picked: int | None = None,
    *,
    widest: int | None = None,
    sparse: bool = False,
    embeds: bool = False,
    tables: bool = True,
) -> Graph:
    """The target in verification mode, over a cache of `context` rows.

    `rows` is the static width, or None for a free one; `picked` that of `pick`, as many where it is not given. With
    `widest`, the most rows of one call, layers with a window keep rings where those pay; `sparse` experts are one
    operator each. With `embeds`, rows can be given in place of embedded tokens. Without `tables` it goes from rows of
    the embedding table to what the head reads: `trace_embed` and `trace_head` are what is left out. Raises
    `IncompatibleError` for a family that has no file in `families/`.
    """
    spec = checkpoint.spec
    family = family_of(spec.family)
    widths: tuple[Size, Size] = ("rows", "picked") if rows is None else (rows, picked or rows)
    fake = FakeTensorMode()
    model = _decoder(checkpoint, fake)
    lengths = cache_rows(layer_windows(model), context, widest)
    width = spec.hidden if embeds else None
    signature = target_signature(
        spec.layers, spec.kv_heads, spec.head_dim, lengths, spec.vocab, len(taps) * spec.hidden, *widths, embeds=width
    )
    if not tables:
        signature = without_head(without_table(signature, spec.hidden), spec.hidden)
    rotary = rotary_tables(type(model.get_decoder().rotary_emb), checkpoint.config, context)
    with hooked(model, family, taps, sparse) as hooks, torch.no_grad():
        kind = EmbedsTarget if embeds else VerificationTarget if tables else TargetBody
        module = kind(
            model,
            hooks,
            taps,
            {name: fake.from_tensor(table) for name, table in rotary.items()},
            _rings(lengths, context),
        )
        program = _export(module, signature, fake)
    return _graph(
        signature,
        program,
        rotary | dict(family.constants(checkpoint.config)),
        lambda name: target_weight(spec, name.removeprefix("model.")),
    )


def trace_embed(checkpoint: TargetCheckpoint, rows: int | None = None) -> Graph:
    """The target's embedding table: tokens to its rows, as they are."""
    return _trace_part(checkpoint, TargetTable, embed_signature(checkpoint.spec.hidden, rows or "rows"))


def trace_head(checkpoint: TargetCheckpoint, rows: int | None = None) -> Graph:
    """The target's head: rows that have passed the final norm to logits."""
    spec = checkpoint.spec
    return _trace_part(checkpoint, TargetHead, head_signature(spec.hidden, spec.vocab, rows or "rows"))


def _trace_part(checkpoint: TargetCheckpoint, kind: Callable[[Any], torch.nn.Module], signature: Signature) -> Graph:
    fake = FakeTensorMode()
    module = kind(_decoder(checkpoint, fake))
    with torch.no_grad():
        program = _export(module, signature, fake)
    return _graph(signature, program, {}, lambda name: target_weight(checkpoint.spec, name.removeprefix("model.")))


def _decoder(checkpoint: TargetCheckpoint, fake: FakeTensorMode) -> Any:
    # Fake tensors cannot be swapped for others, which `to` does, and everything is float32 already.
    with fake, patch.object(torch.nn.Module, "to", lambda module, *_, **__: module):
        return family_of(checkpoint.spec.family).build(copy.deepcopy(checkpoint.config), torch.float32).eval()


def shares_head(drafter: DrafterSpec) -> bool:
    """Whether the target's head makes the drafter's choices: what else the drafter does to logits keeps their order."""
    own = drafter.own_embedding or drafter.draft_vocab is not None or drafter.selector is not None
    return not own and drafter.output_multiplier > 0


def shares_table(drafter: DrafterSpec, target: TargetCheckpoint) -> bool:
    """Whether it can be traced without the target's table: it has none of its own, asks for no token but to embed it,
    and its mask is no token that the target embeds as another.
    """
    replaced = getattr(target.config, PLACEHOLDERS, ())
    return not drafter.own_embedding and drafter.selector is None and drafter.mask_id not in replaced


def trace_inject(
    checkpoint: DrafterCheckpoint, target: TargetSpec, context: int, rows: int | None = None, widest: int | None = None
) -> Graph:
    """The drafter's context K/V of `rows` new tokens (None: any number), over a draft cache of `context` rows; `widest`
    as in `trace_target`.
    """
    spec, width = checkpoint.spec, len(checkpoint.spec.taps) * target.hidden
    lengths = draft_cache_rows(spec, context, widest)
    signature = inject_signature(spec.layers, spec.kv_heads, spec.head_dim, lengths, width, rows or "rows")

    def graph(model: DflashV1, rotary: RotaryTables) -> InjectGraph:
        return InjectGraph(model, rotary, _rings(lengths, context))

    return _trace_drafter(checkpoint, target, context, signature, graph)


def trace_draft(
    checkpoint: DrafterCheckpoint,
    target: TargetSpec,
    context: int,
    rows: int | None = None,
    refine: int = 0,
    widest: int | None = None,
    tables: bool = True,
) -> Graph:
    """Proposals for a block of `rows` (None: any number from 2), refined `refine` times.

    With the target's embedding and head, but for the drafter's own where it has some; `widest` as in `trace_target`.
    Without `tables`, which takes `shares_table`, on rows that are embedded already: all of the block, or all but the
    last where the anchor's row proposes. Their outcome is what the target's head reads, where `shares_head`.
    """
    spec = checkpoint.spec
    lengths = draft_cache_rows(spec, context, widest)
    signature = draft_signature(
        spec.layers, spec.kv_heads, spec.head_dim, lengths, spec.draft_vocab or target.vocab, rows or "rows"
    )

    if not tables:
        given = None if rows is None else rows - spec.sample_from_anchor
        signature = without_table(signature, target.hidden, given)
        signature = without_head(signature, target.hidden) if shares_head(spec) else signature

    def graph(model: DflashV1, rotary: RotaryTables) -> DraftGraph | DraftBody:
        rings = _rings(lengths, context)
        if not tables:
            return DraftBody(model, rotary, None if shares_head(spec) else spec.draft_vocab or target.vocab, rings)
        return (
            RefinedDraft(model, rotary, target.vocab, refine, rings)
            if refine
            else DraftGraph(model, rotary, target.vocab, rings)
        )

    ids = None if checkpoint.vocabulary is None else torch.tensor(checkpoint.vocabulary.ids, dtype=torch.int32)
    return _trace_drafter(checkpoint, target, context, signature, graph, {} if ids is None else {"ids": ids})


def target_weight(spec: TargetSpec, name: str) -> WeightRef:
    """The target's parameter `name`; a tied head is the embedding."""
    return WeightRef("target", EMBEDDING if spec.tied and name == HEAD else name)


def _rings(lengths: Sequence[int], context: int) -> list[int]:
    return [layer for layer, rows in enumerate(lengths) if rows < context]


def _trace_drafter(
    checkpoint: DrafterCheckpoint,
    target: TargetSpec,
    context: int,
    signature: Signature,
    wrap: Callable[[DflashV1, RotaryTables], torch.nn.Module],
    tables: Mapping[str, torch.Tensor] | None = None,
) -> Graph:
    """`tables` are the real values of the buffers, beside rotary tables, that the wrapped module may have."""
    cos, sin = drafter_tables(checkpoint.spec, context)
    fake = FakeTensorMode()
    with fake:
        drafter = draft_module(checkpoint.spec, len(checkpoint.spec.taps) * target.hidden, target.vocab)
        module = wrap(drafter, RotaryTables(fake.from_tensor(cos), fake.from_tensor(sin))).eval()
    with semantic_norms(), torch.no_grad():
        program = _export(module, signature, fake)

    def owner(name: str) -> WeightRef:
        own = checkpoint.spec.own_embedding
        if name == "embedding":
            return WeightRef("drafter", EMBEDDING) if own else target_weight(target, EMBEDDING)
        if name == "head":
            return (
                WeightRef("drafter", HEAD)
                if own or checkpoint.spec.draft_vocab is not None
                else target_weight(target, HEAD)
            )
        tensor = name.removeprefix("drafter.")
        return WeightRef("drafter", tensor, exact=tensor in EXACT)

    return _graph(signature, program, {"cos": cos, "sin": sin, **(tables or {})}, owner)


def _graph(
    signature: Signature,
    program: ExportedProgram,
    tables: Mapping[str, torch.Tensor],
    owner: Callable[[str], WeightRef],
) -> Graph:
    named = program.graph_signature
    constants = {name: tables[last] for name in named.buffers if (last := name.rpartition(".")[2]) in tables}
    weights = {name: owner(name) for name in (*named.parameters, *named.buffers) if name not in constants}
    return Graph(signature, program, weights, constants)


def _export(module: torch.nn.Module, signature: Signature, fake: FakeTensorMode) -> ExportedProgram:
    """`module` as a program with `signature`'s inputs; symbols of the signature stay free."""
    # torch.export guards against sizes it would specialise (a draft's `rows - 1` of 1); the program itself has no such
    # limit.
    least = 3 if signature.role == "draft" else 1
    dims = {size: Dim(size, min=least) for port in signature.inputs for size in port.shape if isinstance(size, str)}
    shapes = [
        {axis: dims[size] for axis, size in enumerate(port.shape) if isinstance(size, str)} for port in signature.inputs
    ]
    with fake:
        inputs = tuple(_example(port) for port in signature.inputs)
    named = len(inputs) - len(signature.caches)
    cached = (tuple(shapes[named:]),) if signature.caches else ()
    return export(module, inputs, dynamic_shapes=(*shapes[:named], *cached))


def _example(port: Port) -> torch.Tensor:
    shape = [_EXAMPLE_ROWS if isinstance(size, str) else size for size in port.shape]
    return torch.zeros(shape, dtype=_DTYPES[port.dtype])
