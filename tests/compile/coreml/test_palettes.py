"""Palettes of evenly spaced values, on matrices as real checkpoints have them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dflash_compile.compile.coreml.convert import quiet
from dflash_compile.compile.coreml.evaluator import lint as rules
from dflash_compile.compile.coreml.evaluator.evaluate import Evaluator
from dflash_compile.compile.coreml.evaluator.lint import lint
from dflash_compile.compile.coreml.precision import Kept, compression_of
from dflash_compile.runtime.errors import BuildError


@pytest.mark.parametrize("name", ["palette4", "palette6"])
def test_a_row_of_large_numbers_does_not_cost_the_others_theirs(tmp_path: Path, name: str) -> None:
    """SmolLM2-135M has such rows: with one table for the matrix all others would be one or two values."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb  # noqa: N813  (its name in every Core ML text)

    weight = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    weight[3] *= 50

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 64))], opset_version=ct.target.iOS18)  # type: ignore[untyped-decorator]
    def program(x: object) -> object:
        return mb.linear(x=x, weight=mb.const(val=weight, name="w"))

    compression = compression_of(name)
    assert compression.compress is not None
    with quiet():
        model = ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18, skip_model_load=True
        )
        compression.compress(model, Kept((), ())).save(str(tmp_path / "m.mlpackage"))
    found = Evaluator(tmp_path / "m.mlpackage").weight("main", "w")
    assert found is not None
    apart = np.linalg.norm(found.float().numpy() - weight, axis=1) / np.linalg.norm(weight, axis=1)
    assert apart[16:].max() < compression.error
    assert apart[3] < compression.error


@pytest.mark.parametrize("name", ["palette4", "palette6"])
def test_only_the_tables_of_a_palette_may_have_more_dimensions_than_core_ml_takes(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neural Engine bundles multiply by 1x1 convolutions, whose weights have four: in tables for every 16 rows the
    palette of one has six.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb  # noqa: N813

    weight = np.random.default_rng(0).standard_normal((128, 64, 1, 1)).astype(np.float32)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 64, 1, 8))], opset_version=ct.target.iOS18)  # type: ignore[untyped-decorator]
    def program(x: object) -> object:
        return mb.relu(x=mb.conv(x=x, weight=mb.const(val=weight, name="w")))

    compression = compression_of(name)
    assert compression.compress is not None
    with quiet():
        model = ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18, skip_model_load=True
        )
        compression.compress(model, Kept((), ())).save(str(tmp_path / "m.mlpackage"))
    tables = [
        op
        for op in Evaluator(tmp_path / "m.mlpackage").saved.functions["main"].operations
        if op.op_type == "constexpr_lut_to_dense"
    ]
    assert [op.lut.rank for op in tables] == [6]
    said = []
    for highest in (rules._HIGHEST_RANK, 3):
        monkeypatch.setattr(rules, "_HIGHEST_RANK", highest)
        with pytest.raises(
            BuildError, match="output relu_0 is float32"
        ) as caught:  # which this program is at fault for
            lint(tmp_path / "m.mlpackage")
        said.append(str(caught.value))
    assert "dimensions" not in said[0]
    assert "has 4 dimensions" in said[1]
    assert "has 6 dimensions" not in said[1]
