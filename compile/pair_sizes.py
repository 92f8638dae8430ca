"""The two models of a build, opened and paired, with every size of the build decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint, TensorSource
from dflash_compile.export.checkpoints.draft_head import drafter_tensors
from dflash_compile.export.checkpoints.thinking import VARIABLES
from dflash_compile.export.pairing import Pairing, pair
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import UsageError

from .options import DEFAULT_CONTEXT, BuildOptions


@dataclass(frozen=True)
class Models:
    """A target and a drafter that belong together, and what is built of them."""

    target: TargetCheckpoint
    drafter: DrafterCheckpoint
    pairing: Pairing
    block: int
    """rows of a block"""

    @property
    def context(self) -> int:
        """Cache rows."""
        return self.pairing.context

    @property
    def sources(self) -> Mapping[Owner, TensorSource]:
        """Where weights are read."""
        return {"target": self.target.tensors, "drafter": drafter_tensors(self.drafter, self.target)}


def decide(target: TargetCheckpoint, drafter: DrafterCheckpoint, options: BuildOptions) -> Models:
    """Pair the models at the sizes that `options` ask for.

    Raises `PairingError` where they do not belong together, `UsageError` for a block wider than the drafter's, and for
    a `drafter_thinking` that the drafter contradicts or the target's chat template has no use for.
    """
    drafter = _trained(drafter, options.drafter_thinking)
    longest = min(target.spec.max_positions, drafter.spec.max_positions)
    pairing = pair(target, drafter, min(longest, DEFAULT_CONTEXT) if options.context is None else options.context)
    if options.drafter_thinking is not None and pairing.switch is None:
        raise UsageError(
            "the target's chat template has no switch for thinking",
            where="--drafter-thinking",
            why=(
                f"it has no effect on prompts: the template reads none of {', '.join(VARIABLES)}, or makes one prompt"
                " of either"
            ),
            fix="leave --drafter-thinking out",
        )
    block = drafter.spec.block if options.block is None else options.block
    if block > drafter.spec.block:
        raise UsageError(
            f"a block of {block} rows is wider than the drafter's",
            where="--block",
            why=f"it was trained for {drafter.spec.block}, and proposals past that are never accepted",
            fix=f"ask for at most {drafter.spec.block}",
        )
    return Models(target, drafter, pairing, block)


def _trained(drafter: DrafterCheckpoint, thinking: bool | None) -> DrafterCheckpoint:
    """`drafter` as one trained with or without thinking, where that is said.

    Raises `UsageError` where the drafter says the opposite.
    """
    if thinking is None:
        return drafter
    if drafter.thinking not in (None, thinking):
        raise UsageError(
            f"the drafter was trained {'with' if drafter.thinking else 'without'} thinking",
            where="--drafter-thinking",
            why=f"the config of {drafter.path} records it",
            fix="leave --drafter-thinking out",
        )
    return replace(drafter, thinking=thinking)
