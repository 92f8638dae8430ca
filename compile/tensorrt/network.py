"""TensorRT's own picture of a graph, checked before an engine is made of it.

Runs in the worker process: imports nothing of the export.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Pairs = Sequence[tuple[str, str]]


def faults(trt: Any, network: Any, caches: Pairs, attentions: int) -> Iterator[str]:
    """What the network would do otherwise than the graph it was parsed from, in sentences.

    `caches` pairs the input and output name of every cache; `attentions` is how many layers attend.
    """
    found = list(attention_layers(trt, network))
    if len(found) != attentions:
        yield f"{len(found)} layers attend, not {attentions}"
    for layer in found:
        yield from _attention_faults(trt, layer)
    yield from _cache_faults(trt, network, dict(caches))


def mark_queries(trt: Any, network: Any) -> list[str]:
    """Make the query of every attention an output, so that grouped heads read K and V in place; returns the new
    outputs' names.
    """
    names = []
    for number, layer in enumerate(attention_layers(trt, network)):
        query = layer.get_input(0)
        query.name = f"query_{number}"
        network.mark_output(query)
        names.append(query.name)
    return names


def attention_layers(trt: Any, network: Any) -> Iterator[Any]:
    """Every attention, as its input boundary shows it."""
    for layer in _layers(network):
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer
            yield layer


def _layers(network: Any) -> Iterator[Any]:
    for index in range(network.num_layers):
        yield network.get_layer(index)


def _attention_faults(trt: Any, layer: Any) -> Iterator[str]:
    attention = layer.attention
    if attention.mask is not None:
        if attention.causal_kind != trt.CausalMaskKind.NONE:
            yield f"{layer.name} has a mask and a causal kind"
        return
    if attention.causal_kind == trt.CausalMaskKind.UPPER_LEFT:
        yield f"{layer.name} is causal from the upper left corner"
    if attention.key_value_lengths is None:
        yield f"{layer.name} has neither lengths nor a mask: it attends to rows never written"


def _cache_faults(trt: Any, network: Any, caches: dict[str, str]) -> Iterator[str]:
    updated: dict[str, str] = {}
    for layer in _layers(network):
        if layer.type == trt.LayerType.KV_CACHE_UPDATE:
            taken, given = layer.get_input(0), layer.get_output(0)
            if not (taken.is_network_input and given.is_network_output):
                yield f"{layer.name} does not update an input of the network into an output"
            if taken.dtype != given.dtype or tuple(taken.shape) != tuple(given.shape):
                yield f"{layer.name} changes the cache's type or shape"
            updated[taken.name] = given.name
    if updated != caches:
        yield f"caches are updated as {updated}, not as {caches}"
