"""What a build would hold and need in memory, as a back-end estimates it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_compile.export.outline import TargetOutline
    from dflash_compile.export.spec import DrafterSpec

WORKING = 1 << 29
"""bytes for activations, tokenizer and Python itself, beside what is counted"""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of weights at one precision, as they lie in the engines' files."""

    precision: str
    target: int
    drafter: int


@dataclass(frozen=True)
class ContextBytes:
    """What depends on the context. Bytes; None where the models do not reach so far."""

    context: int
    target_cache: int | None
    drafter_cache: int | None
    tables: int | None
    """rotary tables of all engines"""
    rings: int = 0
    """layers of both models whose caches are rings"""
    full_cache: int | None = None
    """both models' caches if every layer kept the whole context"""


@dataclass(frozen=True)
class RoleRows:
    """A graph of the build, and the rows it is called with."""

    role: str
    engine: str
    rows: str


@dataclass(frozen=True)
class MemoryEstimate:
    """Sizes of a build of one pair, or of a target alone."""

    target: TargetOutline
    drafter: DrafterSpec | None
    block: int
    experts: Mapping[str, str]
    """how mixtures of experts run, by precision; empty where there are none"""
    roles: tuple[RoleRows, ...]
    weights: tuple[WeightBytes, ...]
    needs: tuple[ContextBytes, ...]
    buffers: int
    """bytes the runtime reserves for logits and taps"""

    def total(self, weights: WeightBytes, needs: ContextBytes) -> int | None:
        """Bytes that a session of these takes, or None where the models do not reach so far."""
        if needs.target_cache is None:
            return None
        return (
            weights.target
            + weights.drafter
            + needs.target_cache
            + (needs.drafter_cache or 0)
            + (needs.tables or 0)
            + self.buffers
            + WORKING
        )
