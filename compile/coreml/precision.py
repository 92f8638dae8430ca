"""What each precision of a Core ML package stores. Activations and cache are float16 in all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.tracing.graph import WeightRef

_SMALLEST = 2048
"""a weight of fewer numbers, a norm say, stays as it is"""
_GROUP = 16
"""rows that share a table: of a whole matrix's, a few large numbers take the range, and the others are stored as the
value next to zero"""


@dataclass(frozen=True)
class Kept:
    """Weights that do not follow the rest, by the names of their constants."""

    exact: tuple[str, ...]
    """never compressed"""
    heads: tuple[str, ...]
    """output head and embedding: four bits there cost more agreement than they save"""


@dataclass(frozen=True)
class Compression:
    """How the matrices of a converted model are made smaller."""

    name: str
    bits: float
    """of a number, tables and scales included"""
    heads: float
    """the same of output head and embedding"""
    error: float
    """most of a matrix's norm that it may lose"""
    compress: Callable[[Any, Kept], Any] | None
    """takes an MLModel and what to treat otherwise, returns an MLModel; None keeps float16"""

    def bytes_of(self, ref: WeightRef, count: int) -> float:
        """What the weight `ref` of `count` numbers takes in a package."""
        if ref.exact:
            return 4 * count
        bits = 16 if count < _SMALLEST else self.heads if ref.tensor in (HEAD, EMBEDDING) else self.bits
        return bits / 8 * count


def _int8(model: Any, kept: Kept) -> Any:
    return _linear(model, _int8_config(), dict.fromkeys(kept.exact))


def _int4(model: Any, kept: Kept) -> Any:
    from coremltools.optimize import coreml as optimize

    blocks = optimize.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=32, weight_threshold=_SMALLEST
    )
    return _linear(model, blocks, {**dict.fromkeys(kept.exact), **dict.fromkeys(kept.heads, _int8_config())})


def _int8_config() -> Any:
    from coremltools.optimize import coreml as optimize

    return optimize.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int8", granularity="per_channel", weight_threshold=_SMALLEST
    )


def _linear(model: Any, rest: Any, named: dict[str, Any]) -> Any:
    from coremltools.optimize import coreml as optimize

    return optimize.linear_quantize_weights(
        model, optimize.OptimizationConfig(global_config=rest, op_name_configs=named)
    )


def _palette(bits: int) -> Callable[[Any, Kept], Any]:
    """One table of evenly spaced values for every `_GROUP` rows: the same bytes in every function, which clustering
    does not promise.
    """

    def compress(model: Any, kept: Kept) -> Any:
        from coremltools.optimize import coreml as optimize

        table = optimize.OpPalettizerConfig(
            nbits=bits, mode="uniform", granularity="per_grouped_channel", group_size=_GROUP, weight_threshold=_SMALLEST
        )
        return optimize.palettize_weights(
            model, optimize.OptimizationConfig(global_config=table, op_name_configs=dict.fromkeys(kept.exact))
        )

    return compress


_COMPRESSIONS = {
    item.name: item
    for item in (
        Compression("fp16", 16, 16, 0.002, None),
        Compression("int8", 8, 8, 0.03, _int8),
        Compression("int4", 4.5, 8, 0.25, _int4),
        Compression("palette6", 6.2, 6.2, 0.15, _palette(6)),
        Compression("palette4", 4.1, 4.1, 0.5, _palette(4)),
    )
}


def compression_of(name: str) -> Compression:
    """The compression called `name`, which is one of `Options.PRECISIONS`."""
    return _COMPRESSIONS[name]
