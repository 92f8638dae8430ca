"""What Core ML's packages have a choice of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from ..backend_options import BackendOptions, Flag
from .names import ANE_IO, GPU_STATE

if TYPE_CHECKING:
    from dflash_compile.runtime.bundle.manifest import Manifest

TARGETS = ("macos15", "macos26")
"""deployment targets, oldest first; each stands for the iOS of the same year too"""
POLICIES = (GPU_STATE, ANE_IO)


@dataclass(frozen=True)
class Options(BackendOptions):
    """Options of one build for Core ML."""

    TITLE: ClassVar[str] = "Core ML, for Apple Silicon"
    PRECISIONS: ClassVar[tuple[str, ...]] = ("fp16", "int8", "int4", "palette6", "palette4")

    deployment_target: Annotated[
        str,
        Flag(
            "The oldest system the bundle is for: macos15 (default, iOS 18 too) or macos26.",
            "|".join(TARGETS),
            choices=TARGETS,
        ),
    ] = TARGETS[0]
    cache_policy: Annotated[
        str,
        Flag(
            "Who keeps the cache: gpu-state, the engine (default), or ane-io, the host.",
            "|".join(POLICIES),
            choices=POLICIES,
        ),
    ] = POLICIES[0]

    def config(self) -> Mapping[str, str | int]:
        """Both."""
        return {"deployment_target": self.deployment_target, "cache_policy": self.cache_policy}

    def differences(self, manifest: Manifest) -> Mapping[str, tuple[object, object]]:
        """Both."""
        return {name.replace("_", " "): (manifest.config.get(name), here) for name, here in self.config().items()}
