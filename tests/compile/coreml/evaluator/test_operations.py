"""Operations of the evaluator beside what other libraries make of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dflash_compile.compile.coreml.evaluator.evaluate import OPERATIONS
from dflash_compile.compile.coreml.evaluator.values import Fault

X = torch.arange(24.0).reshape(2, 3, 4)


def test_padding_names_axes_from_the_first() -> None:
    found = OPERATIONS["pad"](x=X, pad=torch.tensor([1, 0, 0, 2]), mode="constant", constant_val=torch.tensor(5.0))
    np.testing.assert_array_equal(found, np.pad(X.numpy(), ((0, 0), (1, 0), (0, 2)), constant_values=5))
    with pytest.raises(Fault, match="mode reflect"):
        OPERATIONS["pad"](x=X, pad=torch.tensor([1, 0]), mode="reflect")
    with pytest.raises(Fault, match="pads"):
        OPERATIONS["pad"](x=X, pad=torch.tensor([-1, 0]))


@pytest.mark.parametrize("smallest", [False, True])
def test_the_largest_come_first(smallest: bool) -> None:
    random = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    values, indices = OPERATIONS["topk"](
        x=random, k=torch.tensor(3), axis=torch.tensor(-1), ascending=torch.tensor(smallest)
    )
    order = np.argsort(random.numpy() if smallest else -random.numpy(), axis=-1)[:, :3]
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(random.numpy(), order, -1))
    with pytest.raises(Fault, match="the 8 largest of 7"):
        OPERATIONS["topk"](x=random, k=torch.tensor(8), axis=torch.tensor(-1), ascending=torch.tensor(False))


def test_scattering_stays_inside() -> None:
    indices, updates = torch.tensor([[[2, 0]]] * 2), torch.full((2, 1, 2), -1.0)
    found = OPERATIONS["scatter_along_axis"](
        data=X, indices=indices, updates=updates, axis=torch.tensor(2), mode="update"
    )
    wanted = X.numpy().copy()
    np.put_along_axis(wanted[:, :1], indices.numpy(), updates.numpy(), 2)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(Fault, match="looks up"):
        OPERATIONS["scatter_along_axis"](
            data=X, indices=indices + 2, updates=updates, axis=torch.tensor(2), mode="update"
        )
    with pytest.raises(Fault, match="mode add"):
        OPERATIONS["scatter_along_axis"](data=X, indices=indices, updates=updates, axis=torch.tensor(2), mode="add")


def test_filling_takes_the_shape_of_another() -> None:
    found = OPERATIONS["fill_like"](ref_tensor=X, value=torch.tensor(2.5, dtype=torch.float16))
    assert (tuple(found.shape), found.dtype, float(found.min()), float(found.max())) == (
        (2, 3, 4),
        torch.float16,
        2.5,
        2.5,
    )


def test_a_token_that_no_selector_scored_is_a_wrong_choice() -> None:
    from dflash_compile.compile.apple.parity_check import _distance
    from dflash_compile.export.dflash.v2 import UNCHOSEN

    scores = np.full((1, 2, 6), UNCHOSEN, np.float32)
    scores[0, :, :3] = [[1.0, 2.0, 4.0], [3.0, 2.999, 0.0]]
    assert _distance(np.array([[2, 0]]), np.array([[2, 0]]), scores) == 0
    assert _distance(np.array([[2, 1]]), np.array([[2, 0]]), scores) < 1e-3
    assert _distance(np.array([[1, 0]]), np.array([[2, 0]]), scores) == 0.5
    assert _distance(np.array([[2, 5]]), np.array([[2, 0]]), scores) > 1e30
