"""What a build is asked for, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.export.graph import Owner
from dflash_compile.runtime.errors import UsageError

from .precision import precision_of


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build. None means the models' own value. Raises `UsageError` for one that no model could meet."""

    backend: str = "onnxruntime"
    precision: str = "int8"
    drafter_precision: str | None = None
    """of the drafter's engines, where it is not that of the target's"""
    context: int | None = None
    """cache rows: prompt and answer together; by default what both models can address, at most `DEFAULT_CONTEXT`"""
    block: int | None = None
    """rows drafted at once, at most the block the drafter was trained for, which is the default"""
    refine: int = 0
    """passes of the draft after its first, each over the proposals it is least sure of"""
    portable: bool = False
    """standard operators only (opset 24, fp32), which other tools read too; several times slower than the back-end's own"""
    force: bool = False
    """replace a bundle that is there"""

    def __post_init__(self) -> None:
        precision_of(self.precision)
        if self.drafter_precision is not None:
            precision_of(self.drafter_precision, "--drafter-precision")
        if self.portable and (other := {self.precision_for("target"), self.precision_for("drafter")} - {"fp32"}):
            raise UsageError(
                f"the portable form at precision {', '.join(sorted(other))}",
                where="--portable",
                why="standard operators have no block-quantised product",
                fix="add --precision fp32" if self.precision != "fp32" else "leave out --drafter-precision",
            )
        if self.block is not None and self.block < 2:
            raise UsageError(f"a block of {self.block} rows", where="--block", why="a block is the anchor and at least one proposal", fix="give 2 or more")
        if self.refine < 0:
            raise UsageError(f"{self.refine} refinements", where="--refine", fix="give 0 or more")
        if self.context is not None and self.context < 1:
            raise UsageError(f"a context of {self.context} tokens", where="--max-context", fix="give a positive number")

    def precision_for(self, owner: Owner) -> str:
        """The name of the precision of one model's engines."""
        return self.drafter_precision or self.precision if owner == "drafter" else self.precision


DEFAULT_CONTEXT = 2048
