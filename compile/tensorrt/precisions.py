"""What each precision stores and computes in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.export.tracing.signature import Dtype

from ..graphs.encoding import Encoding, Shape
from .encodings import NVFP4_BLOCK, Cast, Int4Groups, NvFp4, Rows8, int4_block

FP16, BF16, FP32 = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT


@dataclass(frozen=True)
class Precision:
    """Weights of linear layers under an encoding; products, attention and caches in `compute`; everything between in
    float32.
    """

    name: str
    compute: ir.DataType
    linear_encoding: Callable[[int], Encoding | None]
    """by the row width K; None: plain floats of `compute`"""
    head_encoding: Callable[[int], Encoding | None]
    table_encoding: Callable[[int], Encoding | None]
    """of an embedding table"""

    @property
    def cache_dtype(self) -> Dtype:
        """Of K and V."""
        names: dict[ir.DataType, Dtype] = {FP16: "float16", BF16: "bfloat16", FP32: "float32"}
        return names[self.compute]

    def linear(self, ref: WeightRef, shape: Shape, head: bool) -> Encoding:
        """How to store the weight [N, K] of a linear layer."""
        if ref.exact:
            return Cast(FP32)
        return (self.head_encoding if head else self.linear_encoding)(shape[1]) or Cast(self.compute)

    def table(self, shape: Shape) -> Encoding:
        """How to store an embedding table [V, H]."""
        return self.table_encoding(shape[1]) or Cast(self.compute)


def _plain(_width: int) -> None:
    return None


def _int8(_width: int) -> Encoding:
    return Rows8(FP16)


def _int4(width: int) -> Encoding | None:
    block = int4_block(width)
    return None if block is None else Int4Groups(block, FP16)


def _fp8(_width: int) -> Encoding:
    return Rows8(FP16, floating=True)


def _nvfp4(width: int) -> Encoding | None:
    return NvFp4() if width % NVFP4_BLOCK == 0 else None


# The head decides between close candidates, and everything starts from the table: neither gets fewer than eight bits.
PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp16", FP16, _plain, _plain, _plain),
        Precision("bf16", BF16, _plain, _plain, _plain),
        Precision("int8", FP16, _int8, _int8, _int8),
        Precision("int4", FP16, _int4, _int8, _int8),
        Precision("fp8", FP16, _fp8, _fp8, _int8),
        Precision("nvfp4", FP16, _nvfp4, _fp8, _int8),
        Precision("fp32", FP32, _plain, _plain, _plain),
    )
}
