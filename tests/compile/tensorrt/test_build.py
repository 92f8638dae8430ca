"""A whole bundle for TensorRT, built without a GPU: the library compiles every engine for real."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest

from dflash_compile.cli.main import main
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.graphs.lowered import Lowered
from dflash_compile.compile.tensorrt import backend as tensorrt
from dflash_compile.compile.tensorrt.options import Options
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import IncompatibleError, UsageError

ARCHITECTURES = ("sm86", "sm120")
ATTENDING = ("prefill", "verify", "draft")
ROLES = {
    "target": {
        *(("embed", rows) for rows in (64, 4, 3, 2, 1)),
        ("prefill", 64),
        *((role, rows) for role in ("verify", "head") for rows in (4, 3, 2)),
    },
    "drafter": {("inject", 64), ("inject", 4), ("draft", 4)},
}
ENGINES = ["target/embed", "target/body", "target/head", "drafter/inject", "drafter/draft"]


@pytest.mark.slow
def test_a_bundle_has_an_engine_for_each_architecture_role_and_width(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = models.write_target(tmp_path / "target", "qwen3", num_hidden_layers=2)
    drafter = models.write_drafter(tmp_path / "drafter", target, layers=1, block=4, taps=(0,))
    common = [
        "--backend",
        "tensorrt",
        "--precision",
        "int4",
        "--drafter-precision",
        "fp16",
        "--max-context",
        "64",
        "--widths",
        "3",
    ]
    assert (
        main(
            [
                "build",
                str(target),
                str(drafter),
                "-o",
                str(tmp_path / "bundle"),
                *common,
                "--arch",
                ",".join(ARCHITECTURES),
                "-q",
            ]
        )
        == 0
    )
    bundle = open_bundle(tmp_path / "bundle")
    manifest = bundle.manifest
    for name, model in (("target", manifest.target), ("drafter", manifest.drafter)):
        assert {(graph.role, graph.rows, graph.arch) for graph in model.graphs} == {
            (*role, arch) for role in ROLES[name] for arch in ARCHITECTURES
        }
        for graph in model.graphs:
            assert bundle.file(graph.file).is_file()
            assert graph.plan is not None
            assert graph.plan.capturable
            layers = model.layers if graph.role in ATTENDING else 0
            assert graph.plan.fused_attention == layers, graph.file
            if graph.arch == "sm120":
                assert graph.plan.cache_copies == 0, graph.file
    assert (manifest.target.precision, manifest.drafter.precision) == ("int4", "fp16")
    assert (manifest.requires.package, manifest.requires.minimum) == ("tensorrt-rtx", manifest.requires.maximum)
    assert {graph.file for model in (manifest.target, manifest.drafter) for graph in model.graphs} == {
        f"{engine}.{arch}.plan" for engine in ENGINES for arch in ARCHITECTURES
    }, "one engine for each part and architecture, and its weights once"
    numbers = {
        (graph.role, graph.rows): graph.profile
        for graph in manifest.target.graphs
        if graph.file == "target/body.sm120.plan"
    }
    assert numbers == {("prefill", 64): 0, ("verify", 4): 1, ("verify", 3): 2, ("verify", 2): 3}
    draft = next(graph for graph in manifest.drafter.graphs if graph.role == "draft")
    ports = [port.name for port in (*draft.inputs, *draft.outputs) if "cache" not in port.name]
    assert ports == ["embedded", "position", "hidden"], "neither tokens nor logits: the target's table and head serve"
    assert {
        f"drafter/{kernel}.{arch}.cubin" for kernel in ("commit", "loop") for arch in ARCHITECTURES
    } <= manifest.files.keys()
    assert len(manifest.measured) == 2 * len(ARCHITECTURES) * len(ENGINES), "time and memory of every engine"
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == [
        "drafter",
        "manifest.json",
        "target",
        "tokenizer",
    ], "no ONNX file stays"
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "bundle"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["config"]["arch"] == "sm86,sm120"
    options = BuildOptions("tensorrt", "int4", "fp16", context=64, engine={"arch": ARCHITECTURES})
    with pytest.raises(IncompatibleError, match="not those of this build") as refusal:
        build(str(target), str(drafter), tmp_path / "again", options, target_from=bundle.root)
    assert "widths: 3 there" in refusal.value.why
    options = replace(options, engine={"arch": ARCHITECTURES, "widths": (3,)})
    again = build(str(target), str(drafter), tmp_path / "again", options, target_from=bundle.root)
    assert open_bundle(again).manifest.files == manifest.files, "equal plans, whether compiled again or taken over"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "arch", "stored"), [("fp8", "sm89", "FLOAT8E4M3FN"), ("nvfp4", "sm120", "FLOAT4E2M1")]
)
def test_a_bundle_of_narrow_floats(
    precision: str, arch: str, stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Smaller than the same at fp16, and fused and copy-free as that is."""
    target = models.write_target(tmp_path / "target", "qwen3", num_hidden_layers=2)
    drafter = models.write_drafter(tmp_path / "drafter", target, layers=1, block=4, taps=(0,))
    dtypes: list[set[str]] = []
    real = tensorrt.bind

    def bind(lowered: Lowered, *arguments: object) -> Path:
        dtypes.append({binding.stored.dtype.name for binding in lowered.bindings.values()})
        return real(lowered, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(tensorrt, "bind", bind)
    options, notes = BuildOptions("tensorrt", precision, context=64, engine={"arch": (arch,)}), list[str]()
    manifest = open_bundle(build(str(target), str(drafter), tmp_path / "bundle", options, note=notes.append)).manifest
    assert any("not tried" in note for note in notes) == (precision == "nvfp4"), "which ONNX Runtime does not know"
    assert len(dtypes) == len(ENGINES)
    assert [stored in found for found in dtypes] == [False, True, precision == "fp8", True, True], (
        "a table is int8, a head fp8"
    )
    for model in (manifest.target, manifest.drafter):
        assert model.precision == precision
        for graph in model.graphs:
            assert graph.plan is not None
            assert graph.plan.fused_attention == (model.layers if graph.role in ATTENDING else 0), graph.file
            assert (graph.plan.cache_copies, graph.plan.capturable) == (0, True), graph.file


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"precision": "fp8", "engine": {"arch": ("sm86",)}}, "--precision"),
        ({"drafter_precision": "nvfp4", "engine": {"arch": ("sm89",)}}, "--drafter-precision"),
        ({"precision": "int3"}, "--precision"),
        ({"engine": {"arch": ("sm1",)}}, "--arch"),
        ({"engine": {"widths": (4, 1)}}, "--widths"),
        ({"engine": {"flavour": "cuda"}}, "--flavour"),
        ({"engine": {"flavour": "trt", "arch": ("sm89", "sm120")}}, "--arch"),
    ],
)
def test_options_these_engines_cannot_have_are_refused(options: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as refusal:
        Options.parse(BuildOptions(backend="tensorrt", **options))
    assert refusal.value.where == where
    assert refusal.value.fix
