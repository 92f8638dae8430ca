"""Names, ranks and dtypes of every graph's inputs and outputs.

The one place they are fixed: tracing names its inputs from here, a manifest repeats them, an engine binds by them.
Dimensions are numbers or symbols: "rows" (S, free per run), "picked" (rows that pass the head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16", "int32", "int64", "int8"]
Dim = int | str


@dataclass(frozen=True)
class Port:
    """One input or output of a graph."""

    name: str
    dtype: Dtype
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Signature:
    """All ports of one graph, in order. `caches` pairs each cache input with the output that updates it."""

    role: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    caches: tuple[tuple[str, str], ...] = ()


def cache_names(layers: int) -> tuple[tuple[str, str], ...]:
    """(input, output) names of every cache tensor: K and V of layer 0, of layer 1, …"""
    return tuple(
        (f"{kind}_cache_{layer}", f"{kind}_cache_{layer}_out") for layer in range(layers) for kind in ("k", "v")
    )


Length = int | Sequence[int]
"""rows of every cache, or of those of each layer"""


def _cache_ports(
    layers: int, kv_heads: int, length: Length, head_dim: int, dtype: Dtype
) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    lengths = [length] * layers if isinstance(length, int) else length
    shapes = [(1, kv_heads, rows, head_dim) for rows in lengths for _ in ("k", "v")]
    named = list(zip(cache_names(layers), shapes, strict=True))
    return tuple(Port(i, dtype, shape) for (i, _), shape in named), tuple(
        Port(o, dtype, shape) for (_, o), shape in named
    )


def target_signature(
    layers: int,
    kv_heads: int,
    head_dim: int,
    length: Length,
    vocab: int,
    taps_width: int,
    rows: Dim = "rows",
    picked: Dim = "picked",
    dtype: Dtype = "float32",
    embeds: int | None = None,
) -> Signature:
    """The target in verification mode with host-side acceptance: prefill, verify and decode in one graph.

    `pick` lists the rows whose logits are wanted: all of them to verify, the last one to prefill. With `embeds`, the
    hidden size, a row for which `given` is not 0 starts from that row of `embeds` in place of its token's embedding.
    """
    given = () if embeds is None else (Port("embeds", dtype, (1, rows, embeds)), Port("given", "int32", (1, rows)))
    cache_in, cache_out = _cache_ports(layers, kv_heads, length, head_dim, dtype)
    return Signature(
        role="target",
        inputs=(
            Port("tokens", "int32", (1, rows)),
            Port("position", "int32", (1,)),
            Port("pick", "int32", (picked,)),
            *given,
            *cache_in,
        ),
        outputs=(Port("logits", dtype, (1, picked, vocab)), Port("taps", dtype, (1, rows, taps_width)), *cache_out),
        caches=cache_names(layers),
    )


def inject_signature(
    layers: int,
    kv_heads: int,
    head_dim: int,
    length: Length,
    taps_width: int,
    rows: Dim = "rows",
    dtype: Dtype = "float32",
) -> Signature:
    """Context K/V of `rows` newly committed tokens, written to the draft cache at `position`."""
    cache_in, cache_out = _cache_ports(layers, kv_heads, length, head_dim, dtype)
    return Signature(
        role="inject",
        inputs=(Port("taps", dtype, (1, rows, taps_width)), Port("position", "int32", (1,)), *cache_in),
        outputs=cache_out,
        caches=cache_names(layers),
    )


def draft_signature(
    layers: int, kv_heads: int, head_dim: int, length: Length, vocab: int, rows: Dim = "rows", dtype: Dtype = "float32"
) -> Signature:
    """`rows` block tokens (anchor, then masks) in; logits of every row but the anchor's out.

    `vocab` is the number of tokens that can be proposed: logit i is that of row i of the head.
    The block's K/V land in the draft cache at `position` and are overwritten by the next inject.
    """
    cache_in, cache_out = _cache_ports(layers, kv_heads, length, head_dim, dtype)
    proposals = rows - 1 if isinstance(rows, int) else "proposals"
    return Signature(
        role="draft",
        inputs=(Port("block", "int32", (1, rows)), Port("position", "int32", (1,)), *cache_in),
        outputs=(Port("logits", dtype, (1, proposals, vocab)), *cache_out),
        caches=cache_names(layers),
    )


def without_table(signature: Signature, width: int, rows: Dim | None = None) -> Signature:
    """`signature` with rows of `width` numbers that are embedded already in place of its tokens, or `rows` of them."""
    tokens = signature.inputs[0]
    embedded = Port("embedded", "float32", (1, tokens.shape[1] if rows is None else rows, width))
    return replace(signature, inputs=(embedded, *signature.inputs[1:]))


def without_head(signature: Signature, width: int) -> Signature:
    """`signature` with what a head reads, rows of `width` numbers, in place of its logits."""
    logits = signature.outputs[0]
    hidden = Port("hidden", logits.dtype, (*logits.shape[:2], width))
    return replace(signature, outputs=(hidden, *signature.outputs[1:]))


def embed_signature(width: int, rows: Dim = "rows") -> Signature:
    """Tokens to their rows of the target's embedding table."""
    return Signature("embed", (Port("tokens", "int32", (1, rows)),), (Port("embedded", "float32", (1, rows, width)),))


def head_signature(width: int, vocab: int, rows: Dim = "rows") -> Signature:
    """Rows that have passed the final norm to the target's logits."""
    return Signature(
        "head", (Port("hidden", "float32", (1, rows, width)),), (Port("logits", "float32", (1, rows, vocab)),)
    )


def of_rows(signature: Signature, rows: int) -> Signature:
    """`signature` with its free row count fixed."""

    def ports(all_ports: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(
            replace(port, shape=tuple(rows if size == "rows" else size for size in port.shape)) for port in all_ports
        )

    return replace(signature, inputs=ports(signature.inputs), outputs=ports(signature.outputs))


def with_cache_dtype(signature: Signature, dtype: Dtype) -> Signature:
    """`signature` with its caches in another dtype."""
    cached = {name for pair in signature.caches for name in pair}

    def ports(all_ports: tuple[Port, ...]) -> tuple[Port, ...]:
        return tuple(replace(port, dtype=dtype) if port.name in cached else port for port in all_ports)

    return replace(signature, inputs=ports(signature.inputs), outputs=ports(signature.outputs))
