"""What each precision stores: one recipe per name of the `--precision` option."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.export.tracing.graph import WeightRef

from ..graphs.encoding import Encoding, Floats, Shape
from ..graphs.lowered import pieces
from .gptq import GptqGroups
from .hessians import Hessians
from .options import GROUPS
from .quantize import IntGroups, block_for


@dataclass(frozen=True)
class Precision:
    """Bits of linear layers and of the output head (None: float32), and of embedding rows."""

    name: str
    linear_bits: int | None
    head_bits: int | None
    half_embedding: bool
    group: int = GROUPS[0]
    """most numbers of four bits that share a scale"""
    hessians: Hessians | None = None
    """of the target's inputs, where its four bits are rounded for them"""

    def linear(self, ref: WeightRef, shape: Shape, head: bool) -> Encoding:
        """How to store the weight [N, K] of a linear layer."""
        bits = self.head_bits if head else self.linear_bits
        block = block_for(shape[1], self.group if bits == 4 else GROUPS[0])
        if bits is None or block is None or ref.exact:
            return Floats()
        if bits == 4 and self.hessians is not None and ref.owner == "target":
            # Stacked tensors read the same rows.
            return GptqGroups(bits, block, pieces(ref, shape[0])[0][0], self.hessians)
        return IntGroups(bits, block)

    def embedding(self) -> Floats:
        """How to store a table that rows are looked up in."""
        return Floats(half=self.half_embedding)


PRECISIONS = {
    recipe.name: recipe
    for recipe in (
        Precision("int8", 8, 8, half_embedding=True),
        # The head decides between close candidates: four bits there cost more agreement than they save time.
        Precision("int4", 4, 8, half_embedding=True),
        Precision("fp32", None, None, half_embedding=False),
    )
}
"""by name, the default first"""


def precision_of(name: str) -> Precision:
    """The recipe called `name`, which is one of `Options.PRECISIONS`."""
    return PRECISIONS[name]
