"""The static graphs of a pair for Apple's back-ends: at which widths, and with the ports an engine shows its host.

Greedy graphs give token ids, never logits: prefill the choice after its last row, verify and decode the choice after
every row, draft its proposals (rows of the draft head, where that is reduced). Inject has to give something: the
position behind what it wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dflash_compile.export.tracing.graph import Owner
from dflash_compile.export.tracing.signature import Dtype, Port, Signature

from ..graphs import roles as shared
from ..pair_sizes import Models
from .caches import CACHE, NEW_ROWS, CacheShape

_ALIGNMENT = 32
"""of the cache length: the Neural Engine wants it, others do not mind"""
_VERIFY = (("tokens",), ("choices", "taps"))
_PORTS = {
    "prefill": (("tokens", "valid"), ("choices", "taps")),
    "verify": _VERIFY,
    "decode": _VERIFY,
    "inject": (("taps",), ("end",)),
    "draft": (("block",), ("proposals",)),
}
"""what the host hands in, less position and cache, and what comes out, less the cache"""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Role(shared.Role):
    """One graph of a bundle. `valid` rows of a prefill are real; the choice is that after the last of them."""

    cache: CacheShape
    dtype: Dtype
    """of taps and cache"""
    taps: tuple[int, ...]
    """tapped layers whose output it gives, in list order; none where it gives none"""
    taps_width: int
    """numbers in a row of taps"""

    @property
    def function(self) -> str:
        """Its name as an entry point of an engine that has several."""
        return f"{self.name}{self.rows}"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Everything the host hands in, and the cache."""
        return (*self.own_inputs, Port("position", "int32", (1,)), Port(CACHE, self.dtype, self.cache.sizes))

    @property
    def signature(self) -> Signature:
        """As the manifest records it: a state is a cache whose input and output are one port.

        A cache that the host keeps is an input.
        """
        if self.cache.in_state:
            return Signature(
                self.name, self.inputs, (*self.results, Port(CACHE, self.dtype, self.cache.sizes)), ((CACHE, CACHE),)
            )
        return Signature(self.name, self.inputs, self.returned)

    @property
    def returned(self) -> tuple[Port, ...]:
        """Everything that comes out, less a state: `results`, and new rows of the cache where the host keeps them."""
        return self.results if self.cache.in_state or not self.commits else (*self.results, self._new_rows)

    @property
    def _new_rows(self) -> Port:
        return Port(NEW_ROWS, self.dtype, (self.cache.entries, self.cache.kv_heads, self.rows, self.cache.head_dim))

    @property
    def commits(self) -> bool:
        """Whether rows that a call writes are ever kept.

        Those of a draft are not: the next inject writes what the target made of them.
        """
        return self.name != "draft"

    @property
    def own_inputs(self) -> tuple[Port, ...]:
        """What the host hands in, less the position and the cache."""
        return tuple(self._port(name) for name in _PORTS[self.name][0])

    @property
    def results(self) -> tuple[Port, ...]:
        """Everything that comes out, less the cache."""
        return tuple(self._port(name) for name in _PORTS[self.name][1])

    def _port(self, name: str) -> Port:
        if name == "taps":
            return Port(name, self.dtype, (1, self.rows, self.taps_width))
        if name in ("valid", "end"):
            return Port(name, "int32", (1,))
        chosen = {"choices": 1 if self.name == "prefill" else self.rows, "proposals": self.rows - 1}
        return Port(name, "int32", (1, chosen.get(name, self.rows)))

    def given(self, ports: Tensors) -> torch.Tensor:
        """`pick`, the one input of a semantic graph that is no port of the engine and no cache, int32 [picked]."""
        return ports["valid"] - 1 if self.name == "prefill" else torch.arange(self.rows, dtype=torch.int32)

    def taken(self, name: str, outputs: Tensors, ports: Tensors) -> torch.Tensor:
        """The value of the result `name`, from the semantic graph's outputs and the engine's inputs."""
        if name in outputs:
            return outputs[name]
        return ports["position"] + self.rows if name == "end" else outputs["logits"].argmax(-1)


def sizes(port: Port) -> tuple[int, ...]:
    """The shape of a static graph's port."""
    return tuple(size for size in port.shape if isinstance(size, int))


def widths_of(block: int) -> tuple[int, ...]:
    """Widths of verify and draft, widest first: the block, then halves of it down to four rows."""
    widths = [block]
    while widths[-1] // 2 >= 4:
        widths.append(widths[-1] // 2)
    return tuple(widths)


def roles_of(models: Models, owner: Owner, dtype: Dtype, in_state: bool = True, late: bool = False) -> tuple[Role, ...]:
    """Every graph of one model, over caches that their engines keep (`in_state`, and written `late` or by every layer)
    or the host.
    """
    spec = models.target.spec if owner == "target" else models.drafter.spec
    length = shared.cache_length(models, _ALIGNMENT)
    cache = CacheShape(2 * spec.layers, spec.kv_heads, length, spec.head_dim, in_state, late)
    taps, widths = tuple(models.drafter.spec.taps), widths_of(models.block)
    width = len(taps) * models.target.spec.hidden
    return tuple(
        Role(role.name, owner, role.widths, cache, dtype, taps if owner == "target" else (), width)
        for role in shared.static_roles(models, [(rows,) for rows in widths], widths, (owner,))
    )
