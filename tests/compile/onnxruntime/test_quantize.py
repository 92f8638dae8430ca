"""Block quantisation: error bounds, exact values, independence of chunks, and the layout ONNX Runtime reads."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from dflash_compile.compile.onnxruntime.quantize import IntGroups, block_for


@pytest.mark.parametrize(
    ("width", "block"), [(576, 64), (1536, 64), (96, 32), (160, 32), (48, 16), (100, None), (1440, 64)]
)
def test_blocks_fill_the_width_or_nearly(width: int, block: int | None) -> None:
    assert block_for(width) == block


@pytest.mark.parametrize(
    ("width", "most", "block"),
    [(1536, 128, 128), (1536, 256, 256), (576, 128, 128), (576, 256, 128), (576, 32, 32), (96, 128, 32), (48, 64, 16)],
)
def test_blocks_are_no_larger_than_asked_for(width: int, most: int, block: int) -> None:
    assert block_for(width, most) == block


@settings(max_examples=40, deadline=None)
@given(bits=st.sampled_from([4, 8]), scale=st.floats(1e-6, 1e4), shift=st.floats(-3, 3), seed=st.integers(0, 1000))
def test_the_error_is_at_most_half_a_step(bits: int, scale: float, shift: float, seed: int) -> None:
    weight = (torch.randn(3, 64, generator=torch.Generator().manual_seed(seed)) + shift) * scale
    encoding = IntGroups(bits, 32)
    parts = encoding.encode(weight)
    step = torch.from_numpy(parts[1]).repeat_interleave(32, 1)
    error = (encoding.decode(parts) - weight).abs()
    if bits == 8:
        assert (error <= step * (0.5 + 1e-3)).all()
        return
    # The scale is fitted after rounding, by up to a level in sixteen, and the ends may be cut off where that pays.
    levels = torch.stack([torch.from_numpy(parts[0]) & 15, torch.from_numpy(parts[0]) >> 4], -1).reshape(3, 64)
    assert (error <= step * (1 + 1e-3))[(levels > 0) & (levels < 15)].all()


@settings(max_examples=40, deadline=None)
@given(block=st.sampled_from([32, 64]), shift=st.floats(-3, 3), heavy=st.booleans(), seed=st.integers(0, 1000))
def test_four_bits_lose_no_more_than_rounding_the_whole_range(block: int, shift: float, heavy: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(8, 192, generator=random) + shift
    weight = weight**3 if heavy else weight
    blocks = weight.reshape(8, -1, block)
    low, high = blocks.amin(-1, keepdim=True).clamp(max=0), blocks.amax(-1, keepdim=True).clamp(min=0)
    step = (high - low) / 15
    zero = (-low / step).round()
    rounded = (((blocks / step).round() + zero).clamp(0, 15) - zero) * step
    found = IntGroups(4, block).decode(IntGroups(4, block).encode(weight)).reshape_as(blocks)
    lost, allowed = ((found - blocks) ** 2).sum(-1), ((rounded - blocks) ** 2).sum(-1)
    assert (lost <= allowed * (1 + 1e-4) + 1e-9).all()
    assert lost.sum() < allowed.sum()


@pytest.mark.parametrize("bits", [4, 8])
def test_constant_blocks_survive(bits: int) -> None:
    for value in (0.0, 2.5, -1.0):
        weight = torch.full((2, 32), value)
        torch.testing.assert_close(
            IntGroups(bits, 32).decode(IntGroups(bits, 32).encode(weight)), weight, rtol=1e-6, atol=0
        )


@pytest.mark.parametrize("bits", [4, 8])
def test_chunks_encode_as_the_whole_does(bits: int) -> None:
    weight, encoding = torch.randn(10, 96), IntGroups(bits, 32)
    whole = encoding.encode(weight)
    pieces = [encoding.encode(weight[start : start + 3]) for start in range(0, 10, 3)]
    for index, part in enumerate(encoding.parts((10, 96))):
        np.testing.assert_array_equal(np.concatenate([piece[index] for piece in pieces]), whole[index])
        assert whole[index].shape == part.shape
        assert whole[index].nbytes == part.bytes


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("block", "rest"), [(32, 0), (64, 0), (128, 0), (128, 64), (256, 32), (64, 16)])
def test_onnx_runtime_reads_the_layout(bits: int, block: int, rest: int) -> None:
    """Without `accuracy_level` the kernel computes in float32, so it must agree with the decoded weight."""
    n, k = 6, 3 * block - rest
    encoding, weight = IntGroups(bits, block), torch.randn(n, k)
    parts = encoding.encode(weight)
    tensors = [numpy_helper.from_array(part, f"w{index}") for index, part in enumerate(parts)]
    node = helper.make_node(
        "MatMulNBits",
        ["x", *(t.name for t in tensors)],
        ["y"],
        domain="com.microsoft",
        K=k,
        N=n,
        bits=bits,
        block_size=block,
    )
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, [1, 5, k])], [value("y", TensorProto.FLOAT, [1, 5, n])], tensors
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    session = onnxruntime.InferenceSession(
        helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    )
    x = torch.randn(1, 5, k)
    (found,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, (x @ encoding.decode(parts)[:, :k].T).numpy(), atol=1e-3)
