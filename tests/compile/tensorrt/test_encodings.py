"""TensorRT's weight encodings: what DequantizeLinear makes of them, in onnx's own reference evaluator, and how far that
is from the weight.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.helper
import onnx.parser
import onnx_ir as ir
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from dflash_compile.compile.tensorrt.architectures import architectures_of, check_precision
from dflash_compile.compile.tensorrt.encodings import NVFP4_GLOBAL, Cast, Int4Groups, NvFp4, Rows8
from dflash_compile.compile.tensorrt.precisions import PRECISIONS
from dflash_compile.export.tracing.graph import WeightRef
from dflash_compile.runtime.errors import UsageError

N, K = 6, 256
FP16, BF16 = ir.DataType.FLOAT16, ir.DataType.BFLOAT16
CASES = {
    "int8": (Rows8(FP16), "axis: int = 0", 0.5 / 127),
    "int4": (Int4Groups(128, FP16), "axis: int = 1, block_size: int = 128", 0.5 / 7),
}


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    rows = torch.randn(N, K, generator=torch.Generator().manual_seed(0)) * 0.05
    rows[2] = 0  # a row of zeros has no scale of its own
    rows[3, :128] *= 100
    return rows


@pytest.mark.parametrize("name", CASES)
def test_integers_are_read_back_within_half_a_step(name: str, weight: torch.Tensor) -> None:
    encoding: Any
    encoding, attributes, half_step = CASES[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["" : 24]> g (float x) => (float16 y) {{ y = DequantizeLinear <{attributes}>'
        " (q, s) }"
    )
    for label, part, array in zip("qs", encoding.parts((N, K)), encoding.encode(weight), strict=True):
        model.graph.initializer.append(
            onnx.helper.make_tensor(label, int(part.dtype), part.shape, array.tobytes(), raw=True)
        )
    (read,) = ReferenceEvaluator(model).run(None, {"x": np.float32(0)})
    blocks = weight.reshape(N, -1, 128) if name == "int4" else weight[:, None]
    most = blocks.abs().amax(-1, keepdim=True)
    error = (torch.from_numpy(read.astype(np.float32)).reshape(blocks.shape) - blocks).abs()
    assert (error <= most * half_step * 1.01 + most * 2**-10 + 1e-7).all()
    assert (read[2] == 0).all()


def test_eight_bit_floats_keep_three_bits(weight: torch.Tensor) -> None:
    levels, scales = Rows8(FP16, floating=True).encode(weight)
    read = levels.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales.astype(np.float32)[:, None]
    error, most = np.abs(read - weight.numpy()), np.abs(weight.numpy()).max(1, keepdims=True)
    assert (error <= np.maximum(np.abs(weight.numpy()) * 2**-4 * 1.01, most * 2**-9)).all()


def test_four_bit_floats_take_the_nearest_level(weight: torch.Tensor) -> None:
    packed, scales = NvFp4().encode(weight)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(N, K)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    step = np.repeat(scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * NVFP4_GLOBAL, 16, 1)
    read = np.where(codes & 8, -1, 1) * table[codes & 7] * step
    choices = np.stack([sign * level * step for level in table for sign in (1, -1)])
    np.testing.assert_allclose(np.abs(read - weight.numpy()), np.abs(choices - weight.numpy()).min(0), atol=1e-7)
    assert np.abs(read - weight.numpy()).max() <= np.abs(weight.numpy()).max() / 6 * 1.1
    levels = codes.reshape(N, -1, 16)[0].astype(np.uint8)
    assert (levels & 7).max() >= 6, "the scale uses the whole range"


@pytest.mark.parametrize("dtype", [FP16, BF16, ir.DataType.FLOAT])
def test_plain_floats_are_the_weight_cast(dtype: ir.DataType, weight: torch.Tensor) -> None:
    (array,) = Cast(dtype).encode(weight)
    (part,) = Cast(dtype).parts((N, K))
    assert array.nbytes == part.bytes
    wide = array.view(ml_dtypes.bfloat16).astype(np.float32) if dtype == BF16 else array.astype(np.float32)
    np.testing.assert_allclose(wide, weight.numpy(), rtol=2**-8)


@pytest.mark.parametrize("name", PRECISIONS)
def test_parts_are_as_large_as_what_is_written(name: str, weight: torch.Tensor) -> None:
    for head in (False, True):
        encoding = PRECISIONS[name].linear(WeightRef("target", "w"), (N, K), head)
        assert [array.nbytes for array in encoding.encode(weight)] == [part.bytes for part in encoding.parts((N, K))]


def test_exact_weights_stay_in_float32_at_every_precision() -> None:
    assert {
        precision.linear(WeightRef("drafter", "fc.weight", exact=True), (N, K), head=False)
        for precision in PRECISIONS.values()
    } == {Cast(ir.DataType.FLOAT)}


LACKING = [
    ("fp8", "sm86", False),
    ("fp8", "sm89", True),
    ("nvfp4", "sm89", False),
    ("nvfp4", "sm120", True),
    ("bf16", "sm75", False),
]


@pytest.mark.parametrize(("name", "arch", "works"), LACKING)
def test_a_precision_that_an_architecture_lacks_is_refused_with_the_reason(name: str, arch: str, works: bool) -> None:
    if works:
        check_precision(name, architectures_of([arch]), "--precision")
        return
    with pytest.raises(UsageError, match=arch) as refusal:
        check_precision(name, architectures_of([arch]), "--precision")
    assert refusal.value.why
    assert arch in refusal.value.fix


def test_an_unknown_architecture_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="sm42") as refusal:
        architectures_of(["sm89", "sm42"])
    assert "sm120 (RTX 50)" in refusal.value.fix
