"""Core AI's models leave nothing to choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..backend_options import BackendOptions


@dataclass(frozen=True)
class Options(BackendOptions):
    """Options of one build for Core AI."""

    TITLE: ClassVar[str] = "Core AI, for Apple Silicon"
    PRECISIONS: ClassVar[tuple[str, ...]] = ("fp32",)
