"""A target compiled once, with one drafter after another: the same bundle as a full build's, or a refusal that says
what differs.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import models
import msgspec
import onnx
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.runtime import load
from dflash_compile.runtime.bundle.files import MANIFEST
from dflash_compile.runtime.bundle.manifest import Manifest
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.errors import BundleError, IncompatibleError, UsageError

OPTIONS = BuildOptions(precision="int4", context=96, block=5)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    return open_target(models.write_target(tmp_path_factory.mktemp("target") / "target", num_hidden_layers=3))


@pytest.fixture(scope="module")
def drafters(target: TargetCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> list[DrafterCheckpoint]:
    folder = tmp_path_factory.mktemp("drafters")
    return [
        open_drafter(models.write_drafter(folder / str(seed), target.path, layers=1, seed=seed)) for seed in range(2)
    ]


@pytest.fixture(scope="module")
def built(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return build(target, drafters[0], tmp_path_factory.mktemp("built") / "built", OPTIONS)


@pytest.fixture(scope="module")
def whole(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """A full build with the second drafter."""
    return contents(build(target, drafters[1], tmp_path_factory.mktemp("whole") / "whole", OPTIONS))


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "copy")


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EXDEV, "another disk")


@pytest.fixture(scope="module")
def swapped(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], built: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The second drafter with the target of `built`."""
    steps: list[str] = []
    folder = tmp_path_factory.mktemp("swapped")
    bundle = build(
        target,
        drafters[1],
        folder / "swapped",
        OPTIONS,
        lambda step, done=0, total=0: steps.append(f"{step} {total}"),
        target_from=built,
    )
    assert "tracing and lowering 2" in steps, "the target was traced as well"
    return bundle


def test_it_equals_a_full_build_byte_for_byte(swapped: Path, built: Path, whole: dict[str, bytes]) -> None:
    assert contents(swapped) == whole
    assert (swapped / "target" / "target.onnx.data").samefile(built / "target" / "target.onnx.data")


def test_the_text_is_the_targets_whoever_drafts(swapped: Path, built: Path) -> None:
    answers = []
    for bundle in (built, swapped):
        with load(bundle) as session:
            answers.append(list(session.tokens([5, 6, 7, 8], max_new_tokens=24, block=4)))
            assert answers[-1] == list(session.tokens([5, 6, 7, 8], max_new_tokens=24, draft=False))
    assert answers[0] == answers[1]


def test_a_bundle_gives_to_its_own_successor_and_without_links(
    target: TargetCheckpoint,
    drafters: list[DrafterCheckpoint],
    copy: Path,
    whole: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="there is a bundle"):
        build(target, drafters[1], copy, OPTIONS, target_from=copy)
    monkeypatch.setattr(os, "link", no_links)
    build(target, drafters[1], copy, replace(OPTIONS, force=True), target_from=copy)
    assert contents(copy) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_drafter_of_another_precision_goes_with_the_same_target(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], built: Path, tmp_path: Path
) -> None:
    options = BuildOptions(precision="int4", drafter_precision="int8", context=96)
    manifest = open_bundle(build(target, drafters[1], tmp_path / "bundle", options, target_from=built)).manifest
    assert (manifest.target.precision, manifest.drafter.precision, manifest.pairing.block) == ("int4", "int8", 8)
    assert manifest.config["drafter_precision"] == "int8"
    names = [
        tensor.name
        for tensor in onnx.load(
            tmp_path / "bundle" / "drafter" / "inject.onnx", load_external_data=False
        ).graph.initializer
    ]
    assert any(name.endswith(".int8") for name in names)
    assert not any(name.endswith(".int4") for name in names)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"precision": "int8", "context": 96}, ["precision of the target: int4 there, int8 here"]),
        ({"precision": "int4", "context": 96, "engine": {"group_size": 32}}, ["group size: 64 there, 32 here"]),
        ({"precision": "int4", "context": 64}, ["context: 96 there, 64 here"]),
        (
            {"precision": "fp32", "context": 64, "engine": {"portable": True}},
            ["portable form: False there, True here", "precision of", "context: "],
        ),
    ],
)
def test_another_build_is_refused_with_everything_that_differs(
    target: TargetCheckpoint,
    drafters: list[DrafterCheckpoint],
    built: Path,
    wanted: dict[str, object],
    says: list[str],
    tmp_path: Path,
) -> None:
    refuse(target, drafters[1], built, BuildOptions(**wanted), says, tmp_path)  # type: ignore[arg-type]


def test_other_taps_are_refused(
    target: TargetCheckpoint, built: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Their order counts: they are concatenated as listed."""
    reverse = models.write_drafter(tmp_path_factory.mktemp("reverse") / "drafter", target.path, layers=1, taps=(1, 0))
    refuse(target, open_drafter(reverse), built, OPTIONS, ["taps: [0, 1] there, [1, 0] here"], tmp_path)


def test_another_target_of_the_same_shape_is_refused(
    drafters: list[DrafterCheckpoint], built: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    other = open_target(models.write_target(tmp_path_factory.mktemp("other") / "target", seed=1, num_hidden_layers=3))
    refuse(other, drafters[1], built, OPTIONS, ["target file model.safetensors: another one"], tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: msgspec.structs.replace(m, created_by="dflash-compile 0.0.1"), "tool: dflash-compile 0.0.1 there"),
        (
            lambda m: msgspec.structs.replace(m, requires=msgspec.structs.replace(m.requires, built_with="1.31.0")),
            "back-end: onnxruntime 1.31.0 there",
        ),
    ],
)
def test_engines_of_another_version_are_refused(
    target: TargetCheckpoint,
    drafters: list[DrafterCheckpoint],
    copy: Path,
    change: Callable[[Manifest], Manifest],
    says: str,
    tmp_path: Path,
) -> None:
    (copy / MANIFEST).write_bytes(msgspec.json.encode(change(read_manifest(copy))))
    refuse(target, drafters[1], copy, OPTIONS, [says], tmp_path, left=["copy"])


def refuse(
    target: TargetCheckpoint,
    drafter: DrafterCheckpoint,
    built: Path,
    options: BuildOptions,
    says: list[str],
    folder: Path,
    left: list[str] | None = None,
) -> None:
    steps: list[str] = []
    with pytest.raises(IncompatibleError) as caught:
        build(
            target,
            drafter,
            folder / "out",
            options,
            lambda step, done=0, total=0: steps.append(step),
            target_from=built,
        )
    assert all(words in caught.value.why for words in says), caught.value.why
    assert caught.value.why.count(";") == len(says) - 1
    assert steps == ["opening the models"], "it refused only after work had begun"
    assert [path.name for path in folder.iterdir()] == (left or [])


def test_what_is_no_bundle_is_refused(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], tmp_path: Path
) -> None:
    for place in (tmp_path / "nothing", drafters[0].path):
        with pytest.raises(UsageError):
            build(target, drafters[1], tmp_path / "out", OPTIONS, target_from=place)
    assert not list(tmp_path.iterdir())


def test_a_changed_byte_is_found_and_nothing_is_left(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], copy: Path, tmp_path: Path
) -> None:
    """Sizes alone do not show it."""
    data = copy / "target" / "target.onnx.data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    with pytest.raises(BundleError, match="not the file that was built"):
        build(target, drafters[1], tmp_path / "out", OPTIONS, target_from=copy)
    data.write_bytes(content[:-1])
    with pytest.raises(BundleError, match="bytes long"):
        build(target, drafters[1], tmp_path / "out", OPTIONS, target_from=copy)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_ctrl_c_halfway_leaves_nothing_and_the_donor_whole(
    target: TargetCheckpoint, drafters: list[DrafterCheckpoint], built: Path, tmp_path: Path
) -> None:
    def progress(step: str, done: int = 0, total: int = 0) -> None:
        if step == "taking over the target" and done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(target, drafters[1], tmp_path / "out", OPTIONS, progress, target_from=built)
    assert not list(tmp_path.iterdir())
    open_bundle(built)
