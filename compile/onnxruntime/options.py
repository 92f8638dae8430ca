"""What ONNX Runtime's engines have a choice of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from dflash_compile.runtime.errors import UsageError

from ..backend_options import BackendOptions, Flag
from ..calibration_text import Calibration

if TYPE_CHECKING:
    from dflash_compile.runtime.bundle.manifest import Manifest

    from ..pair_sizes import Models

GROUPS = (64, 32, 128, 256)
"""numbers that may share a scale, the default first: the larger, the faster on CPU and the less exact"""
_GROUPED = "int4"
"""the precision whose weights share scales in groups"""
_HEAD_STEP = 16
"""columns that the fused attention rotates at once"""


@dataclass(frozen=True)
class Options(BackendOptions):
    """Options of one build for ONNX Runtime."""

    TITLE: ClassVar[str] = "ONNX Runtime, for CPUs and CUDA"
    PRECISIONS: ClassVar[tuple[str, ...]] = ("int8", "int4", "fp32")

    group_size: Annotated[
        int | None,
        Flag("Most weights that share a scale at int4: 64 (default), 32, 128 or 256.", "N", choices=GROUPS),
    ] = None
    calibrate: Annotated[
        Calibration | None,
        Flag(
            "Round the target's int4 weights for what they meet: 'prompts' of many kinds, or a text file.",
            "TEXT",
        ),
    ] = None
    refine: Annotated[
        int, Flag("Run a draft again this often over the proposals it is least sure of; 0 by default.", "N")
    ] = 0
    portable: Annotated[
        bool, Flag("Standard operators only (opset 24), for other tools: several times slower. Needs --precision fp32.")
    ] = False

    def __post_init__(self) -> None:
        if self.group_size is not None and not self._grouped:
            raise UsageError(
                f"groups of {self.group_size} weights at precision {self.precision}",
                where="--group-size",
                why="only weights of four bits have them",
                fix=f"leave it out, or build with --precision {_GROUPED}",
            )
        if self.calibrate is not None and self.precision != _GROUPED:
            raise UsageError(
                f"calibration at precision {self.precision}",
                where="--calibrate",
                why="only weights of four bits are rounded for what they are multiplied with",
                fix=f"leave it out, or build with --precision {_GROUPED}",
            )
        if self.refine < 0:
            raise UsageError(f"{self.refine} refinements", where="--refine", fix="give 0 or more")
        if self.portable and (other := {self.precision, self.drafter_precision} - {"fp32"}):
            raise UsageError(
                f"the portable form at precision {', '.join(sorted(other))}",
                where="--portable",
                why="standard operators have no block-quantised product",
                fix="add --precision fp32" if self.precision != "fp32" else "leave out --drafter-precision",
            )

    @property
    def group(self) -> int:
        """Most weights of four bits that share a scale."""
        return self.group_size or GROUPS[0]

    @property
    def _grouped(self) -> bool:
        return _GROUPED in (self.precision, self.drafter_precision)

    def for_models(self, models: Models) -> Self:
        """The same with calibration texts made.

        Raises `UsageError` for drafts that cannot be refined so often and for heads that no kernel takes.
        """
        if not self.portable:
            _check_heads(models)
        if self.refine > max(models.block - 2, 0):
            raise UsageError(
                f"{self.refine} refinements of a block of {models.block} rows",
                where="--refine",
                why=f"each keeps one of its {models.block - 1} proposals or more, and the last pass needs one to make",
                fix=f"ask for at most {models.block - 2}",
            )
        if self.refine and models.drafter.spec.selector is not None:
            raise UsageError(
                "a draft with a candidate selector cannot be refined",
                where="--refine",
                why="the selector chooses along one path, and refining would choose again by proposal",
                fix="leave --refine out",
            )
        return self if self.calibrate is None else replace(self, calibrate=self.calibrate.for_target(models.target))

    def config(self) -> Mapping[str, str | int]:
        """Group size and calibration only where they mean something."""
        grouping = {"group_size": self.group} if self._grouped else {}
        calibration = {} if self.calibrate is None else {"calibration": self.calibrate.name}
        return {"portable": self.portable, "refine": self.refine, **grouping, **calibration}

    def differences(self, manifest: Manifest) -> Mapping[str, tuple[object, object]]:
        """Of the target: a drafter's groups are its own."""
        there, here = manifest.config, self.config()
        names = {"portable": "portable form", "calibration": "calibration"}
        if self.precision == _GROUPED:
            names["group_size"] = "group size"
        return {title: (there.get(name), here.get(name)) for name, title in names.items()}


def _check_heads(models: Models) -> None:
    """The fused attention kernels rotate heads in pieces of `_HEAD_STEP` columns."""
    for name, spec in (("target", models.target.spec), ("drafter", models.drafter.spec)):
        if spec.head_dim % _HEAD_STEP:
            raise UsageError(
                f"the {name}'s heads are {spec.head_dim} wide",
                where=f"{spec.name}: head_dim",
                why=f"ONNX Runtime's attention takes heads of {_HEAD_STEP}, {2 * _HEAD_STEP}, … columns",
                fix="build with --portable --precision fp32, which attends with standard operators and is slower",
            )
