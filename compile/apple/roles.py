"""The static graphs of a pair: one role at one width, with the ports an engine shows its host.

Greedy graphs give token ids, never logits: prefill the choice after its last row, verify and decode the choice after
every row, draft its proposals (rows of the draft head, where that is reduced).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from dflash_compile.export.tracing.graph import Graph, Owner
from dflash_compile.export.tracing.signature import Dtype, Port, Signature
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target

from ..pair_sizes import Models
from .caches import CACHE, NEW_ROWS, CacheShape

PREFILL_ROWS = 64
"""a wider prefill call costs no less per token on the machines that were measured"""
_ALIGNMENT = 32
"""of the cache length: the Neural Engine wants it, others do not mind"""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Role(ABC):
    """One graph of a bundle."""

    name: str
    owner: Owner
    rows: int
    cache: CacheShape
    dtype: Dtype
    """of taps and cache"""

    @property
    def function(self) -> str:
        """Its name as an entry point of an engine that has several."""
        return f"{self.name}{self.rows}"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Everything the host hands in, and the cache."""
        return (*self.own_inputs(), Port("position", "int32", (1,)), Port(CACHE, self.dtype, self.cache.sizes))

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
        return True

    @abstractmethod
    def trace(self, models: Models) -> Graph:
        """The semantic graph behind this role."""

    @abstractmethod
    def given(self, name: str, ports: Tensors) -> torch.Tensor:
        """The semantic graph's input `name`, which is no port of the engine and no cache."""

    @abstractmethod
    def taken(self, name: str, outputs: Tensors, ports: Tensors) -> torch.Tensor:
        """The value of the result `name`, from the semantic graph's outputs and the engine's inputs."""

    @property
    @abstractmethod
    def results(self) -> tuple[Port, ...]:
        """Everything that comes out, less the cache."""

    @abstractmethod
    def own_inputs(self) -> tuple[Port, ...]:
        """What the host hands in, less the position and the cache."""


@dataclass(frozen=True)
class TargetRole(Role):
    """prefill, verify or decode. `valid` rows of a prefill are real; the choice is that after the last of them."""

    taps_width: int
    taps: tuple[int, ...] = ()
    """layers, in list order"""

    @property
    def _prefill(self) -> bool:
        return self.name == "prefill"

    def trace(self, models: Models) -> Graph:
        return trace_target(models.target, self.taps, models.context, self.rows, 1 if self._prefill else None)

    def given(self, name: str, ports: Tensors) -> torch.Tensor:
        return ports["valid"] - 1 if self._prefill else torch.arange(self.rows, dtype=torch.int32)

    def own_inputs(self) -> tuple[Port, ...]:
        tokens = Port("tokens", "int32", (1, self.rows))
        return (tokens, Port("valid", "int32", (1,))) if self._prefill else (tokens,)

    @property
    def results(self) -> tuple[Port, ...]:
        return Port("choices", "int32", (1, 1 if self._prefill else self.rows)), Port(
            "taps", self.dtype, (1, self.rows, self.taps_width)
        )

    def taken(self, name: str, outputs: Tensors, ports: Tensors) -> torch.Tensor:
        return outputs["logits"].argmax(-1) if name == "choices" else outputs[name]


@dataclass(frozen=True)
class InjectRole(Role):
    """Context K/V of `rows` rows of taps. It has to give something: the position behind what it wrote."""

    taps_width: int

    def trace(self, models: Models) -> Graph:
        return trace_inject(models.drafter, models.target.spec, models.context, self.rows)

    def given(self, name: str, ports: Tensors) -> torch.Tensor:
        raise KeyError(name)

    def own_inputs(self) -> tuple[Port, ...]:
        return (Port("taps", self.dtype, (1, self.rows, self.taps_width)),)

    @property
    def results(self) -> tuple[Port, ...]:
        return (Port("end", "int32", (1,)),)

    def taken(self, name: str, outputs: Tensors, ports: Tensors) -> torch.Tensor:
        return ports["position"] + self.rows


@dataclass(frozen=True)
class DraftRole(Role):
    """Proposals for a block of `rows`, the anchor first."""

    @property
    def commits(self) -> bool:
        return False

    def trace(self, models: Models) -> Graph:
        return trace_draft(models.drafter, models.target.spec, models.context, self.rows)

    def given(self, name: str, ports: Tensors) -> torch.Tensor:
        raise KeyError(name)

    def own_inputs(self) -> tuple[Port, ...]:
        return (Port("block", "int32", (1, self.rows)),)

    @property
    def results(self) -> tuple[Port, ...]:
        return (Port("proposals", "int32", (1, self.rows - 1)),)

    def taken(self, name: str, outputs: Tensors, ports: Tensors) -> torch.Tensor:
        return outputs["logits"].argmax(-1)


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

    Caches are longer than the context, so that the padding of a last, wide call fits as well.
    """
    prefill = max(PREFILL_ROWS, models.block)
    length = -(-(models.context + prefill) // _ALIGNMENT) * _ALIGNMENT
    spec = models.target.spec if owner == "target" else models.drafter.spec
    cache = CacheShape(2 * spec.layers, spec.kv_heads, length, spec.head_dim, in_state, late)
    taps = tuple(models.drafter.spec.taps)
    width = len(taps) * models.target.spec.hidden
    widths = widths_of(models.block)
    if owner == "target":
        calls = [("prefill", prefill), *(("verify", rows) for rows in widths), ("decode", 1)]
        return tuple(TargetRole(name, owner, rows, cache, dtype, width, taps) for name, rows in calls)
    injects = tuple(
        InjectRole("inject", owner, rows, cache, dtype, width) for rows in sorted({prefill, models.block}, reverse=True)
    )
    return (*injects, *(DraftRole("draft", owner, rows, cache, dtype) for rows in widths))
