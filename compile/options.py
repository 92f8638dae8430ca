"""What a build is asked for, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.errors import UsageError

from .backend import find_backend
from .onnxruntime.calibration_text import Calibration

_GROUPED = "int4"
"""the precision whose weights share scales in groups"""


@dataclass(frozen=True)
class BuildOptions:
    """Options of one build. None means the models' own value. Raises `UsageError` for one that no model could meet."""

    backend: str = "onnxruntime"
    precision: str = ""
    """of the weights; empty: the back-end's default"""
    drafter_precision: str | None = None
    """of the drafter's engines, where it is not that of the target's"""
    context: int | None = None
    """cache rows: prompt and answer together; by default what both models can address, at most `DEFAULT_CONTEXT`"""
    block: int | None = None
    """rows drafted at once, at most the block the drafter was trained for, which is the default"""
    widths: tuple[int, ...] = ()
    """rows of a verify beside the block's, where an engine has one width"""
    refine: int = 0
    """passes of the draft after its first, each over the proposals it is least sure of"""
    portable: bool = False
    """standard operators only (opset 24, fp32), which other tools read too; several times slower than the back-end's
    own"""
    group_size: int | None = None
    """most weights of four bits that share a scale, where the back-end has a choice; its own by default"""
    calibration: Calibration | None = None
    """texts that the target's weights of four bits are rounded for, where the back-end can; each block on its own
    without"""
    arch: tuple[str, ...] = ()
    """GPU architectures to compile for, where the back-end compiles; empty: its default"""
    flavour: str | None = None
    """which of several libraries of a back-end compiles; by default the one that is installed"""
    deployment_target: str | None = None
    """the oldest system engines are for, where the back-end has a choice; its own by default"""
    cache_policy: str | None = None
    """who keeps the caches, where the back-end has a choice; its own by default"""
    drafter_thinking: bool | None = None
    """whether the drafter was trained on prompts that asked for thinking, where its checkpoint does not say"""
    force: bool = False
    """replace a bundle that is there"""

    def __post_init__(self) -> None:
        backend = find_backend(self.backend)
        if not self.precision:
            object.__setattr__(self, "precision", next(iter(backend.PRECISIONS)))
        if not self.arch:
            object.__setattr__(self, "arch", tuple(backend.ARCHITECTURES))
        self._check_choice("deployment target", self.deployment_target, backend.DEPLOYMENT_TARGETS)
        self._check_choice("cache policy", self.cache_policy, backend.CACHE_POLICIES)
        self._check_choice("group size", self.group_size, backend.GROUP_SIZES)
        if self.group_size is not None and not self.grouping:
            raise UsageError(
                f"groups of {self.group_size} weights at precision {self.precision}",
                where="--group-size",
                why="only weights of four bits have them",
                fix=f"leave it out, or build with --precision {_GROUPED}",
            )
        if self.calibration is not None and self.group_size_for("target") is None:
            raise UsageError(
                f"calibration at precision {self.precision} for {self.backend}",
                where="--calibrate",
                why="only ONNX Runtime's weights of four bits are rounded for what they are multiplied with",
                fix=f"leave it out, or build with --backend onnxruntime --precision {_GROUPED}",
            )
        backend.check_options(self)
        if self.block is not None and self.block < 2:
            raise UsageError(
                f"a block of {self.block} rows",
                where="--block",
                why="a block is the anchor and at least one proposal",
                fix="give 2 or more",
            )
        if any(width < 2 for width in self.widths):
            raise UsageError(
                f"a width of {min(self.widths)} rows",
                where="--widths",
                why="a verify is the anchor and at least one proposal",
                fix="give 2 or more",
            )
        if self.refine < 0:
            raise UsageError(f"{self.refine} refinements", where="--refine", fix="give 0 or more")
        if self.context is not None and self.context < 1:
            raise UsageError(f"a context of {self.context} tokens", where="--max-context", fix="give a positive number")

    def _check_choice(self, what: str, chosen: str | int | None, known: Sequence[str | int]) -> None:
        if chosen is not None and chosen not in known:
            raise UsageError(
                f"{what} {chosen!r}",
                where=f"--{what.replace(' ', '-')}",
                why="" if known else f"bundles of the back-end {self.backend} have none",
                fix=f"choose one of {', '.join(map(str, known))}" if known else "leave it out",
            )

    @property
    def deployment(self) -> dict[str, str]:
        """`deployment_target` and `cache_policy` with their defaults, where the back-end has any."""
        backend = find_backend(self.backend)
        choices = (
            ("deployment_target", self.deployment_target, backend.DEPLOYMENT_TARGETS),
            ("cache_policy", self.cache_policy, backend.CACHE_POLICIES),
        )
        return {name: chosen or known[0] for name, chosen, known in choices if known}

    @property
    def grouping(self) -> dict[str, int]:
        """`group_size` with its default, where the back-end has a choice and some weights are of four bits."""
        sizes = [size for owner in OWNERS if (size := self.group_size_for(owner)) is not None]
        return {"group_size": sizes[0]} if sizes else {}

    @property
    def calibrated(self) -> dict[str, str]:
        """What the weights were rounded for, where that was given."""
        return {} if self.calibration is None else {"calibration": self.calibration.name}

    def group_size_for(self, owner: Owner) -> int | None:
        """The most weights of four bits that share a scale in one model's engines; None where none are, or the back-end
        has no choice.
        """
        sizes = find_backend(self.backend).GROUP_SIZES
        return self.group_size or sizes[0] if sizes and self.precision_for(owner) == _GROUPED else None

    def precision_for(self, owner: Owner) -> str:
        """The name of the precision of one model's engines."""
        return self.drafter_precision or self.precision if owner == "drafter" else self.precision


DEFAULT_CONTEXT = 2048
