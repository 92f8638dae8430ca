"""The norm of Core ML packages, which must not overflow float16 whatever it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dflash_compile.compile.apple.reference import rounded_norm
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.runtime.errors import BuildError


class Norm(torch.nn.Module):
    """One norm, by the semantic operator or as it is written out everywhere."""

    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.raw = raw
        self.weight = torch.nn.Parameter(
            1 + 0.1 * torch.randn(64, generator=torch.Generator().manual_seed(0)), requires_grad=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.raw:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return torch.ops.dflash.rms_norm(x, self.weight, 1e-6)  # type: ignore[no-any-return]


def norm_package(folder: Path, raw: bool) -> Evaluator:
    import coremltools as ct

    import dflash_compile.compile.coreml.ops  # noqa: F401

    program = torch.export.export(Norm(raw), (torch.zeros(1, 4, 64, dtype=torch.float32),)).run_decompositions({})
    model = ct.convert(
        program,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
        outputs=[ct.TensorType(name="y", dtype=np.float16)],
    )
    model.save(str(folder / "norm.mlpackage"))
    return Evaluator(folder / "norm.mlpackage")


@pytest.mark.parametrize("size", [1e-4, 1.0, 600.0, 30000.0])
def test_the_norm_holds_at_any_activation(tmp_path: Path, size: float) -> None:
    x = (torch.randn(1, 4, 64, generator=torch.Generator().manual_seed(1)).clamp(-2, 2) * size).half().float()
    found = norm_package(tmp_path, raw=False).run("main", {"x": x.numpy()})["y"]
    np.testing.assert_allclose(found, Norm(raw=False)(x), atol=1e-2)
    # The gate asks of rounding what the package does: step by step, not the result alone.
    np.testing.assert_allclose(found, rounded_norm(x, Norm(raw=False).weight, 1e-6), rtol=1e-3)


def test_the_norm_of_a_row_of_zeros_is_zero(tmp_path: Path) -> None:
    assert not norm_package(tmp_path, raw=False).run("main", {"x": np.zeros((1, 4, 64), np.float32)})["y"].any()


def test_a_norm_that_overflows_is_found_by_running(tmp_path: Path) -> None:
    """Written out with a raw square it returns zeros in float16, and no error from any engine."""
    with pytest.raises(BuildError, match="not finite"):
        norm_package(tmp_path, raw=True).run("main", {"x": np.full((1, 4, 64), 600, np.float32)})
