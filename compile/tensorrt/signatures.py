"""What goes into each engine and comes out of it, by the signature of the graph that was traced.

Shapes: S rows of a call, H the target's width, n taps, B the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dflash_compile.export.tracing.signature import Dtype, Port, Signature, with_cache_dtype


def embed_signature(traced: Signature) -> Signature:
    """tokens int32 [1, S] to their rows of the target's table, `embedded` float32 [1, S, H]."""
    return replace(traced, role="embed")


def body_signature(traced: Signature, cache_dtype: Dtype) -> Signature:
    """`embedded` rows at `position` through all layers: what the head reads, `hidden` [1, S, H] and `last` [1, 1, H],
    that of row `valid - 1`; `taps` [1, S, n * H] and the caches.
    """
    inputs = [Port("valid", "int32", (1,)) if port.name == "pick" else port for port in traced.inputs]
    embedded = _named(traced.inputs, "embedded")
    hidden = replace(embedded, name="hidden")
    last = Port("last", embedded.dtype, (1, 1, embedded.shape[2]))
    outputs = [hidden, last, *(port for port in traced.outputs if port.name != "hidden")]
    return with_cache_dtype(replace(traced, role="body", inputs=tuple(inputs), outputs=tuple(outputs)), cache_dtype)


def head_signature(traced: Signature) -> Signature:
    """`hidden` rows to `tokens`, the choice after each; then what a block makes of them: `accepted`, the leading
    proposals of `block` that equal them, `bonus`, the choice after those, and `next_position` = position + accepted +
    1.

    `proposals` is the block that these rows propose, where they are a drafter's: `anchor`, then all tokens but the
    first.
    """
    rows = traced.inputs[0].shape[1]
    block, one = Port("block", "int32", (1, rows)), ("anchor", "position")
    answer = [replace(block, name=name) for name in ("tokens", "proposals")]
    answer += [Port(name, "int32", (1,)) for name in ("accepted", "bonus", "next_position")]
    taken = (*traced.inputs, block, *(Port(name, "int32", (1,)) for name in one))
    return replace(traced, role="head", inputs=taken, outputs=tuple(answer))


def draft_signature(traced: Signature, block: int, cache_dtype: Dtype) -> Signature:
    """`embedded` [1, B, H], the anchor and masks, to `hidden` [1, B, H] for the target's head: row i proposes the
    block's token i.

    Where the drafter has a head of its own: from `anchor`, and `embedded` if it reads the target's table, to `block`.
    """
    outputs, inputs = list(traced.outputs), list(traced.inputs)
    if outputs[0].name == "hidden":
        outputs[0] = replace(outputs[0], shape=(1, block, outputs[0].shape[2]))
    else:
        outputs[0] = Port("block", "int32", (1, block))
        anchor = Port("anchor", "int32", (1,))
        inputs = [anchor, *inputs[1:]] if inputs[0].name == "block" else [anchor, *inputs]
    return with_cache_dtype(replace(traced, inputs=tuple(inputs), outputs=tuple(outputs)), cache_dtype)


def _named(ports: Sequence[Port], name: str) -> Port:
    return next(port for port in ports if port.name == name)
