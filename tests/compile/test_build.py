"""The whole build: what a bundle holds, that it is reproducible, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import onnx
import pytest
import torch

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.onnxruntime.quantize import block_for
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.errors import BuildError, DFlashError, PairingError, UsageError


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetCheckpoint, DrafterCheckpoint]:
    folder = tmp_path_factory.mktemp("models")
    target = models.write_target(folder / "target", "qwen3")
    return open_target(target), open_drafter(models.write_drafter(folder / "drafter", target))


@pytest.fixture(scope="module")
def bundle(pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(*pair, tmp_path_factory.mktemp("out") / "bundle", BuildOptions(precision="int4", context=96, block=5))


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def test_the_runtime_accepts_it(bundle: Path, pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> None:
    manifest = open_bundle(bundle).manifest
    assert (manifest.context, manifest.pairing.block, manifest.target.precision) == (96, 5, "int4")
    assert manifest.pairing.taps == list(pair[1].spec.taps)
    assert manifest.target.sources == dict(pair[0].files)
    assert [graph.role for graph in (*manifest.target.graphs, *manifest.drafter.graphs)] == [
        "target",
        "inject",
        "draft",
    ]
    options = {
        "backend": "onnxruntime",
        "precision": "int4",
        "drafter_precision": "int4",
        "context": 96,
        "block": 5,
        "refine": 0,
        "portable": False,
    }
    options["group_size"] = 64
    assert manifest.config == options


def test_equal_inputs_give_equal_bytes(
    bundle: Path, pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    """From checkpoints opened anew, at another path."""
    target, drafter = open_target(pair[0].path), open_drafter(pair[1].path)
    assert contents(
        build(target, drafter, tmp_path / "elsewhere", BuildOptions(precision="int4", context=96, block=5))
    ) == contents(bundle)


def test_it_names_no_path_of_the_build_machine(bundle: Path, pair: tuple[TargetCheckpoint, DrafterCheckpoint]) -> None:
    homes = [str(path).encode() for path in (bundle.parent, pair[0].path, Path(torch.__file__).parent)]
    for name, data in contents(bundle).items():
        assert not any(home in data for home in homes), name


def test_the_target_carries_nothing_of_the_drafter(bundle: Path) -> None:
    names = {
        tensor.name
        for tensor in onnx.load(bundle / "target" / "target.onnx", load_external_data=False).graph.initializer
    }
    assert not any(name.startswith("drafter.") for name in names)
    assert any(name.startswith("target.") for name in names)


def test_sensitive_weights_stay_in_float32(bundle: Path) -> None:
    model = onnx.load(bundle / "drafter" / "inject.onnx", load_external_data=False)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    assert kinds["drafter.fc.weight"] == onnx.TensorProto.FLOAT
    assert kinds["drafter.layers.0.self_attn.k_proj.weight.int4"] == onnx.TensorProto.UINT8


@pytest.mark.parametrize("size", [32, 128, 256])
def test_weights_of_four_bits_share_scales_in_groups_of_the_size_asked_for(
    size: int, bundle: Path, pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    """As far as their width fills them; those of eight bits stay as they are."""
    options = BuildOptions(precision="int4", drafter_precision="int8", context=96, engine={"group_size": size})
    built = build(*pair, tmp_path / "bundle", options)
    assert read_manifest(built).config["group_size"] == size

    def groups(bundle: Path, name: str) -> set[tuple[int, int, int]]:
        nodes = [
            node
            for node in onnx.load(bundle / name, load_external_data=False).graph.node
            if node.op_type == "MatMulNBits"
        ]
        found = [{it.name: it.i for it in node.attribute} for node in nodes]
        return {(it["bits"], it["K"], it["block_size"]) for it in found}

    target = groups(built, "target/target.onnx")
    assert {(block, width) for bits, width, block in target if bits == 4} == {
        (block_for(width, size), width) for bits, width, _ in target if bits == 4
    }
    assert {it for it in target if it[0] == 8} == {it for it in groups(bundle, "target/target.onnx") if it[0] == 8}
    assert groups(built, "drafter/draft.onnx") == {
        (8, width, block_for(width)) for _, width, _ in groups(built, "drafter/draft.onnx")
    }
    with load(built, threads=1) as session:
        assert list(session.tokens([5, 6, 7], max_new_tokens=20, block=4)) == list(
            session.tokens([5, 6, 7], max_new_tokens=20, draft=False)
        )


def test_the_portable_form_is_standard_and_says_the_same(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    answers = []
    for portable in (True, False):
        options = BuildOptions(precision="fp32", context=96, engine={"portable": portable})
        folder = build(*pair, tmp_path / str(portable), options)
        with load(folder) as session:
            answers.append(list(session.tokens([5, 6, 7, 8], max_new_tokens=24, block=4)))
            assert answers[-1] == list(session.tokens([5, 6, 7, 8], max_new_tokens=24, draft=False))
        if portable:
            for file in folder.rglob("*.onnx"):
                assert {node.domain for node in onnx.load(file, load_external_data=False).graph.node} == {""}, file
    assert answers[0] == answers[1]


def test_ctrl_c_while_binding_leaves_nothing(pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path) -> None:
    def impatient(step: str, done: int = 0, total: int = 0) -> None:
        if step == "binding weights" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(*pair, tmp_path / "bundle", BuildOptions(context=32), impatient)
    assert not list(tmp_path.iterdir())


def test_of_two_builds_to_one_place_the_second_to_finish_is_refused(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    options, place, started = BuildOptions(context=96), tmp_path / "out" / "bundle", []

    def progress(step: str, *_: float) -> None:
        if step == "binding weights" and not started:
            started.append(step)
            build(*pair, place, BuildOptions(context=64))

    with pytest.raises(UsageError, match="there is a bundle"):
        build(*pair, place, options, progress)
    assert open_bundle(place).manifest.context == 64
    assert [path.name for path in place.parent.iterdir()] == ["bundle"]


def test_an_engine_whose_numbers_overflow_is_found_when_it_is_tried(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path
) -> None:
    class Damaged:
        shapes = staticmethod(pair[0].tensors.shapes)

        @staticmethod
        def rows(name: str, start: int, stop: int) -> torch.Tensor:
            found = pair[0].tensors.rows(name, start, stop)
            return found * 3e38 if name.endswith("layers.1.input_layernorm.weight") else found

    with pytest.raises(BuildError, match="not finite"):
        build(
            replace(pair[0], tensors=Damaged()),
            pair[1],
            tmp_path / "bundle",
            BuildOptions(precision="fp32", context=32),
        )
    assert not list(tmp_path.iterdir())


def refuse(
    error: type[DFlashError], pair: tuple[TargetCheckpoint, DrafterCheckpoint], output: Path, options: BuildOptions
) -> None:
    steps: list[str] = []
    with pytest.raises(error):
        build(*pair, output, options, lambda step, done=0, total=0: steps.append(step))
    assert "tracing and lowering" not in steps, "it refused only after work had begun"


def test_refusals_come_before_any_work(
    pair: tuple[TargetCheckpoint, DrafterCheckpoint], bundle: Path, tmp_path: Path
) -> None:
    refuse(UsageError, pair, bundle, BuildOptions())
    refuse(UsageError, pair, tmp_path / "b", BuildOptions(block=pair[1].spec.block + 1))
    refuse(UsageError, pair, tmp_path / "b", BuildOptions(block=4, engine={"refine": 3}))
    refuse(PairingError, pair, tmp_path / "b", BuildOptions(context=pair[0].spec.max_positions + 1))
    assert not list(tmp_path.iterdir())


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"backend": "abacus"}, "--backend"),
    ({"precision": "int3"}, "--precision"),
    ({"drafter_precision": "int3"}, "--drafter-precision"),
    ({"block": 1}, "--block"),
    ({"context": 0}, "--max-context"),
    ({"engine": {"refine": -1}}, "--refine"),
    ({"engine": {"portable": True}}, "--portable"),
    ({"engine": {"portable": True}, "precision": "fp32", "drafter_precision": "int8"}, "--portable"),
    ({"engine": {"group_size": 48}, "precision": "int4"}, "--group-size"),
    ({"engine": {"group_size": 32}, "precision": "int8"}, "--group-size"),
]


@pytest.mark.parametrize(("wrong", "where"), WRONG)
def test_options_that_fit_no_model_are_refused_before_one_is_opened(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as refusal:
        build("no target", "no drafter", "no place", BuildOptions(**wrong))
    assert refusal.value.where == where
    assert refusal.value.fix
