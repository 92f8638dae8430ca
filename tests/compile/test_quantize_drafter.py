"""The int8 form of a drafter: the layout of PyPI `compressed-tensors`, in both directions, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.utils import calculate_qparams
from models import write_drafter, write_speculators, write_target
from safetensors.torch import load_file, save_file

from dflash_compile.compile.options import BuildOptions
from dflash_compile.compile.pair_sizes import decide
from dflash_compile.compile.quantize_drafter import quantize_channels, quantize_drafter
from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.runtime.errors import BuildError, CheckpointError, UsageError

SCALE = "_scale"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture(scope="module")
def plain(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_bfloat16(write_drafter(tmp_path_factory.mktemp("drafter") / "drafter", target, attention_bias=True))


@pytest.fixture(scope="module")
def int8(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize_drafter(plain, tmp_path_factory.mktemp("int8") / "int8")


@pytest.fixture
def copy(int8: Path, tmp_path: Path) -> Path:
    return shutil.copytree(int8, tmp_path / "copy")


def as_bfloat16(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.bfloat16() for name, value in weights.items()}, folder / "model.safetensors")
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = config_of(folder)
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def published_scheme(folder: Path) -> Any:
    config = QuantizationConfig.model_validate(config_of(folder)["quantization_config"])
    return config, config.config_groups["group_0"]


def modules(weights: dict[str, torch.Tensor]) -> list[str]:
    return sorted(name.removesuffix(f".weight{SCALE}") for name in weights if name.endswith(SCALE))


def test_the_published_library_reads_the_same_weights(int8: Path, plain: Path) -> None:
    config, scheme = published_scheme(int8)
    assert (config.format, config.quant_method, config.ignore) == ("int-quantized", "compressed-tensors", ["fc"])
    compressor = BaseCompressor.get_value_from_registry(config.format)
    stored, opened = load_file(int8 / "model.safetensors"), open_drafter(int8)
    assert len(modules(stored)) == 2 * 7
    for module in modules(stored):
        state = {"weight": stored[f"{module}.weight"], "weight_scale": stored[f"{module}.weight_scale"].float()}
        expected = compressor.decompress(state, scheme)["weight"]
        torch.testing.assert_close(opened.read(f"{module}.weight"), expected, rtol=0, atol=0)
    original = open_drafter(plain)
    for name in original.tensors.shapes():
        if name.removesuffix(".weight") not in modules(stored):
            assert torch.equal(opened.read(name), original.read(name)), name


def test_what_the_published_library_writes_is_read(int8: Path, plain: Path, tmp_path: Path) -> None:
    """Scales and rounding are its own here; those of ours may differ."""
    config, scheme = published_scheme(int8)
    compressor = BaseCompressor.get_value_from_registry(config.format)
    folder = shutil.copytree(int8, tmp_path / "theirs")
    original = load_file(plain / "model.safetensors")
    written = dict(original)
    for module in modules(load_file(int8 / "model.safetensors")):
        weight = original[f"{module}.weight"]
        scale, zero = calculate_qparams(weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True), scheme.weights)
        state = compressor.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, scheme)
        written |= {f"{module}.{name}": value for name, value in state.items()}
    save_file(written, folder / "model.safetensors")
    opened = open_drafter(folder)
    for name, weight in original.items():
        step = written[name + SCALE].float() if name + SCALE in written else torch.zeros(1)
        assert ((opened.read(name).float() - weight.float()).abs() <= 1.01 * step).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1e-7, 1e-3, 1.0, 1e4])
def test_the_error_is_at_most_half_a_step(dtype: torch.dtype, size: float) -> None:
    weight = (torch.randn(64, 96) * size).to(dtype)
    levels, scale = quantize_channels(weight)
    assert (levels.dtype, levels.shape, scale.dtype, scale.shape) == (torch.int8, (64, 96), dtype, (64, 1))
    error = (levels.float() * scale.float() - weight.float()).abs()
    # Below float16's range a scale is rounded to a multiple of its smallest step, or to nothing.
    smallest = 128 * torch.finfo(torch.float16).smallest_normal if dtype == torch.float16 else 0.0
    assert (error <= 0.5001 * scale.float() + smallest * (size < 1e-2)).all()


def test_values_worked_by_hand() -> None:
    levels, scale = quantize_channels(
        torch.tensor([[127.0, -63.4, 0.6, 0.0], [0.0, 0.0, 0.0, 0.0], [-254.0, 2.0, 1.0, 3.1]])
    )
    assert scale.flatten().tolist() == [1.0, 1.0, 2.0]
    assert levels.tolist() == [[127, -63, 1, 0], [0, 0, 0, 0], [-127, 1, 0, 2]]


def test_rows_are_read_as_the_whole_is(int8: Path) -> None:
    opened = open_drafter(int8)
    for name, shape in opened.tensors.shapes().items():
        pieces = [opened.tensors.rows(name, start, min(start + 5, shape[0])) for start in range(0, shape[0], 5)]
        assert torch.equal(torch.cat(pieces), opened.read(name))


def test_it_is_a_drafter_like_the_other(int8: Path, plain: Path, target: Path) -> None:
    one, other = open_drafter(int8), open_drafter(plain)
    assert {name: tuple(shape) for name, shape in one.tensors.shapes().items()} == dict(other.tensors.shapes())
    assert (one.spec.layers, one.spec.taps, one.spec.dtype, one.spec.dialect) == (
        other.spec.layers,
        other.spec.taps,
        other.spec.dtype,
        other.spec.dialect,
    )
    assert pair(open_target(target), one).warnings == ()
    assert (int8 / "model.safetensors").stat().st_size < 0.75 * (plain / "model.safetensors").stat().st_size


@pytest.mark.parametrize("own_head", [True, False])
def test_a_reduced_vocabulary_and_its_head_stay(target: Path, own_head: bool, tmp_path: Path) -> None:
    plain = open_drafter(write_speculators(tmp_path / "plain", target, range(0, 200, 2), own_head=own_head))
    int8 = open_drafter(quantize_drafter(plain, tmp_path / "int8"))
    assert int8.vocabulary == plain.vocabulary
    assert int8.tensors.shapes().keys() == plain.tensors.shapes().keys()
    for name in ("fc.weight", *(["lm_head.weight"] if own_head else [])):
        assert torch.equal(int8.read(name), plain.read(name))
    assert decide(open_target(target), int8, BuildOptions()).drafter.vocabulary == plain.vocabulary


def test_equal_inputs_give_equal_bytes(int8: Path, plain: Path, tmp_path: Path) -> None:
    again = quantize_drafter(plain, tmp_path / "again")
    assert {file.name: file.read_bytes() for file in again.iterdir()} == {
        file.name: file.read_bytes() for file in int8.iterdir()
    }


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("quant_method", "gptq", "'gptq'"),
        ("format", "pack-quantized", "'pack-quantized'"),
        ("format", None, "None"),
        ("config_groups", {}, "names no scheme"),
        ("config_groups", [], "names no scheme"),
        ("kv_cache_scheme", {"num_bits": 8}, "kv_cache_scheme"),
        ("transform_config", {"config_groups": {"R1": {}}}, "transform_config"),
        ("sparsity_config", {"format": "sparse-24-bitmask"}, "sparsity_config"),
    ],
)
def test_a_scheme_that_is_not_read_is_refused(copy: Path, key: str, value: Any, says: str) -> None:
    edit_config(copy, lambda config: config.update({key: value}))
    with pytest.raises(CheckpointError) as caught:
        open_drafter(copy)
    assert says in caught.value.what
    assert "quantization_config" in caught.value.where


@pytest.mark.parametrize(
    ("key", "value"), [("num_bits", 4), ("symmetric", False), ("strategy", "group"), ("type", "float")]
)
def test_weights_of_another_kind_are_refused_by_what_differs(copy: Path, key: str, value: Any) -> None:
    edit_config(copy, lambda config: config["config_groups"]["group_0"]["weights"].update({key: value}))
    with pytest.raises(CheckpointError) as caught:
        open_drafter(copy)
    assert f"{key} = {value!r}" in caught.value.why


def test_activations_with_fixed_scales_are_refused(copy: Path) -> None:
    edit_config(copy, lambda config: config["config_groups"]["group_0"]["input_activations"].update(dynamic=False))
    with pytest.raises(CheckpointError, match="fixed scales"):
        open_drafter(copy)


NAME = "layers.0.mlp.up_proj.weight"
Weights = dict[str, torch.Tensor]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.pop(NAME + SCALE), f"{NAME} has no"),
        (lambda w: w.update({NAME + SCALE: w[NAME + SCALE][:-1]}), "has the shape"),
        (lambda w: w.update({NAME + SCALE: w[NAME + SCALE].to(torch.int8)}), "is int8"),
        (lambda w: w.update({NAME: w[NAME].float()}), "scales nothing"),
        (lambda w: w.update({"norm.weight": w["norm.weight"].to(torch.int8)}), "no weight of a linear layer"),
        (lambda w: w.pop(NAME), "scales nothing"),
    ],
)
def test_weights_and_scales_that_do_not_belong_together_are_refused(
    copy: Path, change: Callable[[Weights], object], says: str
) -> None:
    edit_weights(copy, change)
    with pytest.raises(CheckpointError) as caught:
        open_drafter(copy)
    assert says in caught.value.why


def test_int8_without_its_configuration_is_refused(copy: Path) -> None:
    config = config_of(copy)
    del config["quantization_config"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="I8"):
        open_drafter(copy)


def test_a_configuration_without_int8_is_refused(copy: Path, plain: Path) -> None:
    shutil.copyfile(plain / "model.safetensors", copy / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        open_drafter(copy)
    assert "no tensor is int8" in caught.value.why


def test_a_drafter_that_is_int8_already_is_refused(int8: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already"):
        quantize_drafter(int8, tmp_path / "twice")
    assert not list(tmp_path.iterdir())


def test_what_must_not_be_replaced_is_not(plain: Path, copy: Path, tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("you")
    for output, force, says in (
        (copy, False, "there is a drafter"),
        (tmp_path / "letters", True, "no drafter"),
        (plain, True, "replace itself"),
    ):
        before = {file: file.read_bytes() for file in output.iterdir()}
        with pytest.raises(UsageError, match=says):
            quantize_drafter(plain, output, force)
        assert {file: file.read_bytes() for file in output.iterdir()} == before
    quantize_drafter(plain, copy, force=True)


def test_numbers_that_are_not_finite_are_refused(plain: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(plain, tmp_path / "broken")
    edit_weights(broken, lambda weights: weights[NAME].__setitem__((3, 4), float("nan")))
    with pytest.raises(BuildError, match="not finite"):
        quantize_drafter(broken, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_ctrl_c_leaves_nothing(plain: Path, tmp_path: Path) -> None:
    def impatient(step: str, done: int = 0, total: int = 0) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_drafter(plain, tmp_path / "out", progress=impatient)
    assert not list(tmp_path.iterdir())
