"""What a build is asked for, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.export.graph import Owner
from dflash_compile.runtime.errors import UsageError

from .backends import find_backend


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build. None means the models' own value. Raises `UsageError` for one that no model could meet."""

    backend: str = "onnxruntime"
    precision: str | None = None
    """of the weights, one of the back-end's `PRECISIONS`; the first of them by default"""
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
    deployment_target: str | None = None
    """the oldest system that Core ML packages are for; the back-end's own by default"""
    force: bool = False
    """replace a bundle that is there"""

    def __post_init__(self) -> None:
        backend = find_backend(self.backend)
        for option, name in (("--precision", self.precision), ("--drafter-precision", self.drafter_precision)):
            if name is not None and name not in backend.PRECISIONS:
                raise UsageError(f"unknown precision {name!r}", where=option, fix=f"choose one of {', '.join(backend.PRECISIONS)}")
        if self.deployment_target is not None and self.deployment_target not in backend.DEPLOYMENT_TARGETS:
            known = ", ".join(backend.DEPLOYMENT_TARGETS)
            raise UsageError(
                f"deployment target {self.deployment_target!r}",
                where="--deployment-target",
                why="" if known else f"bundles of the back-end {self.backend} have none",
                fix=f"choose one of {known}" if known else "leave it out",
            )
        if self.portable and not backend.PORTABLE:
            raise UsageError(
                f"the portable form of a bundle for {self.backend}",
                where="--portable",
                why="it is a form of ONNX graphs",
                fix="leave out --portable or --backend",
            )
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

    @property
    def deployment(self) -> dict[str, str]:
        """`deployment_target` with its default, where the back-end has any."""
        known = find_backend(self.backend).DEPLOYMENT_TARGETS
        return {"deployment_target": self.deployment_target or known[0]} if known else {}

    def precision_for(self, owner: Owner) -> str:
        """The name of the precision of one model's engines."""
        target = self.precision or find_backend(self.backend).PRECISIONS[0]
        return self.drafter_precision or target if owner == "drafter" else target


DEFAULT_CONTEXT = 2048
