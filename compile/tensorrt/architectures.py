"""The GPU architectures engines are built for, each by itself: one of an older kind in a list costs all of them the
copy-free attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_compile.runtime.errors import UsageError


@dataclass(frozen=True)
class Architecture:
    """A compute capability."""

    name: str
    """as `--arch` takes it: sm89"""
    number: int
    cards: str
    folds: bool
    """whether grouped query heads are folded into rows; elsewhere K and V are read in place once Q is an output of the
    network"""

    @property
    def enumerator(self) -> str:
        """Its name in TensorRT's `ComputeCapability`."""
        return self.name.upper()


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("sm75", 75, "RTX 20", folds=True),
        Architecture("sm80", 80, "A100", folds=True),
        Architecture("sm86", 86, "RTX 30", folds=True),
        Architecture("sm89", 89, "RTX 40", folds=False),
        Architecture("sm120", 120, "RTX 50", folds=False),
    )
}
DEFAULT = ("sm86", "sm89", "sm120")
_FIRST = {
    "bf16": (80, "Turing computes no bfloat16"),
    "fp8": (89, "8-bit floats begin with Ada"),
    "nvfp4": (120, "4-bit floats begin with Blackwell"),
}
"""the first architecture whose products read such weights, and why; those of other precisions are read by all"""


def architectures_of(names: Sequence[str]) -> tuple[Architecture, ...]:
    """The architectures called `names`, in order, each once. Raises `UsageError` for an unknown one."""
    unknown = [name for name in names if name not in ARCHITECTURES]
    if unknown:
        known = ", ".join(f"{name} ({architecture.cards})" for name, architecture in ARCHITECTURES.items())
        raise UsageError(
            f"unknown architecture {', '.join(map(repr, unknown))}", where="--arch", fix=f"choose of {known}"
        )
    return tuple(ARCHITECTURES[name] for name in dict.fromkeys(names))


def check_precision(precision: str, architectures: Sequence[Architecture], option: str) -> None:
    """Raises `UsageError`, naming `option`, where one of `architectures` lacks `precision`."""
    first, why = _FIRST.get(precision, (0, ""))
    lacking = [architecture.name for architecture in architectures if architecture.number < first]
    if lacking:
        raise UsageError(
            f"{', '.join(lacking)} has no {precision}",
            where=option,
            why=why,
            fix=f"leave {', '.join(lacking)} out of --arch, or choose int8 or int4",
        )
