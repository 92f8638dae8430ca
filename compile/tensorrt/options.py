"""What TensorRT's engines have a choice of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from dflash_compile.runtime.errors import UsageError

from ..backend_options import BackendOptions, Flag
from .architectures import DEFAULT, Architecture, architectures_of, check_precision
from .library import FLAVOURS

if TYPE_CHECKING:
    from dflash_compile.runtime.bundle.manifest import Manifest

    from ..pair_sizes import Models


@dataclass(frozen=True)
class Options(BackendOptions):
    """Options of one build for TensorRT."""

    TITLE: ClassVar[str] = "TensorRT, for NVIDIA GPUs"
    PRECISIONS: ClassVar[tuple[str, ...]] = ("fp16", "bf16", "int8", "int4", "fp8", "nvfp4", "fp32")

    arch: Annotated[
        tuple[str, ...], Flag(f"GPU architectures to compile for; {','.join(DEFAULT)} by default.", "LIST")
    ] = DEFAULT
    widths: Annotated[
        tuple[int, ...], Flag("Rows of a verify beside the block's: 4,8. They share one set of weights.", "LIST")
    ] = ()
    flavour: Annotated[
        str | None,
        Flag(
            "TensorRT for RTX (rtx), or TensorRT 11 (trt); by default the one that is installed.",
            "|".join(FLAVOURS),
            choices=tuple(FLAVOURS),
        ),
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", tuple(self.arch) or DEFAULT)
        for name, spelling in ((self.precision, "--precision"), (self.drafter_precision, "--drafter-precision")):
            check_precision(name, self.architectures, spelling)
        if any(width < 2 for width in self.widths):
            raise UsageError(
                f"a width of {min(self.widths)} rows",
                where="--widths",
                why="a verify is the anchor and at least one proposal",
                fix="give 2 or more",
            )
        if self.flavour == "trt" and len(self.architectures) != 1:
            raise UsageError(
                "engines of TensorRT 11 for several architectures",
                where="--arch",
                why="it compiles for the GPU it runs on",
                fix="give that one, or --flavour rtx",
            )

    @property
    def architectures(self) -> tuple[Architecture, ...]:
        """Those of `arch`, each once."""
        return architectures_of(self.arch)

    def for_models(self, models: Models) -> Self:
        """Raises `UsageError` for a verify wider than the block."""
        if any(width > models.block for width in self.widths):
            raise UsageError(
                f"a verify of {max(self.widths)} rows",
                where="--widths",
                why=f"a block has {models.block}",
                fix=f"give widths of at most {models.block}",
            )
        return self

    def config(self) -> Mapping[str, str | int]:
        """Lists as text; widths and flavour only where they were given."""
        said = {"arch": ",".join(self.arch), "widths": _list(self.widths), "flavour": self.flavour}
        return {name: value for name, value in said.items() if value}

    def differences(self, manifest: Manifest) -> Mapping[str, tuple[object, object]]:
        """Widths and architectures."""
        built = {graph.arch for graph in manifest.target.graphs if graph.arch}
        return {
            "widths": (manifest.config.get("widths", ""), _list(self.widths)),
            "architectures": (sorted(built), sorted(self.arch)),
        }


def _list(widths: Collection[int]) -> str:
    return ",".join(map(str, sorted(set(widths))))
