"""What a build is asked for whatever the back-end, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_compile.runtime.errors import UsageError


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
    drafter_thinking: bool | None = None
    """whether the drafter was trained on prompts that asked for thinking, where its checkpoint does not say"""
    force: bool = False
    """replace a bundle that is there"""
    engine: Mapping[str, object] = field(default_factory=dict)
    """what only engines of this back-end have, by the names in its `options.py`"""

    def __post_init__(self) -> None:
        if self.block is not None and self.block < 2:
            raise UsageError(
                f"a block of {self.block} rows",
                where="--block",
                why="a block is the anchor and at least one proposal",
                fix="give 2 or more",
            )
        if self.context is not None and self.context < 1:
            raise UsageError(f"a context of {self.context} tokens", where="--max-context", fix="give a positive number")


DEFAULT_CONTEXT = 2048
