"""A model whose layers are in one engine, or in several that run one after the other: to those who call it, one set of
functions either way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...bundle.manifest import GraphRecord, Manifest, ModelRecord, PortRecord
from ...bundle.parts import TAPS, calls, tap_port
from .engines import Array, Functions

_CACHES = ("cache", "rows")
"""ports of the caches that hosts keep: no part knows another's"""


class Chain(Functions):
    """Every call goes through the engines in order.

    Each gets what it asks for by name, of what the caller or an earlier one gives.
    """

    def __init__(self, record: ModelRecord, engines: Mapping[str, Functions], taps: Sequence[int]) -> None:
        """`engines` by the file that holds them; `taps` are the layers whose outputs are joined, in list order."""
        self._engines = dict(engines)
        self._links = {
            parts[0].function: [_Link(self._engines[graph.file], graph) for graph in parts] for parts in calls(record)
        }
        self._taps = [tap_port(layer) for layer in taps]

    def call(self, function: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """See `Functions`."""
        values: dict[str, Any] = dict(feeds)
        results: dict[str, Any] = {}
        for link in self._links[function]:
            found = link.engine.call(function, {name: values[name] for name in link.reads})
            results |= found
            values |= found
        if self._taps and self._taps[0] in results:
            results[TAPS] = np.concatenate([results[name] for name in self._taps], axis=-1)
        return results

    def close(self) -> None:
        """Release every engine."""
        for engine in self._engines.values():
            engine.close()


class _Link:
    """One engine of a call, and what it reads."""

    def __init__(self, engine: Functions, graph: GraphRecord) -> None:
        held = {taken for taken, _ in graph.caches}
        self.engine = engine
        self.reads = [port.name for port in graph.inputs if port.name not in held and port.name not in _CACHES]


def whole(manifest: Manifest) -> Manifest:
    """`manifest` as if every model were one engine: one graph for each call, with the ports that its caller sees."""
    models = (manifest.target, manifest.drafter)
    target, drafter = (
        msgspec.structs.replace(model, graphs=[_whole(parts, manifest.pairing.taps) for parts in calls(model)])
        for model in models
    )
    return msgspec.structs.replace(manifest, target=target, drafter=drafter)


def _whole(parts: Sequence[GraphRecord], taps: Sequence[int]) -> GraphRecord:
    if len(parts) == 1:
        return parts[0]
    made: dict[str, PortRecord] = {}
    inputs: dict[str, PortRecord] = {}
    for graph in parts:
        inputs |= {port.name: port for port in graph.inputs if port.name not in made and port.name not in _CACHES}
        made |= {port.name: port for port in graph.outputs}
    outputs = [port for port in parts[-1].outputs if port.name not in _CACHES]
    found = [made[name] for name in map(tap_port, taps) if name in made]
    if found:
        width = sum(int(port.shape[-1]) for port in found)
        outputs.append(msgspec.structs.replace(found[0], name=TAPS, shape=[*found[0].shape[:-1], width]))
    return msgspec.structs.replace(parts[0], inputs=list(inputs.values()), outputs=outputs, part=None)
