"""An estimate, made of configurations alone, against what builds of the same models hold."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import onnx
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.graphs.bind import size_of
from dflash_compile.compile.onnxruntime.backend import Options, prepare
from dflash_compile.compile.onnxruntime.memory_estimate import estimate, table_bytes
from dflash_compile.compile.pair_sizes import decide
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.outline import outline_drafter, outline_target
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import CheckpointError, PairingError, UsageError

CONFIGS = Path(__file__).parents[2] / "configs"
CONTEXT = 256
RELATIVE, ABSOLUTE = 0.01, 24_000
"""an estimate leaves out what a graph holds beside weights: numbers in it, and rows that masks are made of"""


def _alone(folder: Path, name: str) -> Path:
    """The configuration of the checkpoint in `folder` in a place where nothing else is."""
    place = folder.parent / f"{name}-alone"
    place.mkdir()
    shutil.copy(folder / "config.json", place / "config.json")
    return place


def _muse(folder: Path) -> tuple[Path, Path]:
    target = models.write_target(folder / "target", "muse_glimmer", sliding_window=7, num_hidden_layers=5)
    kinds = ["sliding_attention", "full_attention"]
    return target, models.write_assistant(folder / "drafter", target, layer_types=kinds, sliding_window=6)


def _pair(
    family: str, write: Callable[..., Path] = models.write_drafter, drafter: dict[str, Any] | None = None, **fields: Any
) -> Callable[..., Any]:
    def make(folder: Path) -> tuple[Path, Path]:
        target = models.write_target(folder / "target", family, **fields)
        return target, write(folder / "drafter", target, **(drafter or {}))

    return make


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
PAIRS = {
    "muse": _muse,
    "qwen3-tied": _pair("qwen3", vocab_size=300),
    "gpt-oss": _pair("gpt_oss", num_local_experts=4, num_experts_per_tok=2, intermediate_size=64, sliding_window=40),
    "qwen3-moe": _pair("qwen3_moe", models.write_deepspec, **EXPERTS),
    "dflash2": _pair("llama", models.write_drafter2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_bytes_are_those_of_the_engines(name: str, tmp_path: Path) -> None:
    target, drafter = PAIRS[name](tmp_path)
    made = estimate(outline_target(_alone(target, "target")), outline_drafter(_alone(drafter, "drafter")), [CONTEXT])
    needs = made.needs[0]
    opened = open_target(target), open_drafter(drafter)
    precision = "int8" if name in ("muse", "qwen3-moe") else "fp32" if name == "qwen3-tied" else "int4"
    pair = decide(*opened, BuildOptions(context=CONTEXT))
    engines = prepare(pair, Options(precision, precision), lambda *_: None).engines
    weights = next(weights for weights in made.weights if weights.precision == precision)
    tables = table_bytes(made.target.rotary_kinds, CONTEXT, 16), 2 * table_bytes(1, CONTEXT, 16)
    for owner, wanted, turned in (("target", weights.target, tables[0]), ("drafter", weights.drafter, tables[1])):
        found = sum(size_of(engine.lowered) for engine in engines if engine.owner == owner)
        assert found == pytest.approx(wanted + turned, rel=RELATIVE, abs=ABSOLUTE), owner
    signatures = {engine.signature.role: engine.signature for engine in engines}
    for role, wanted in (("target", needs.target_cache), ("draft", needs.drafter_cache)):
        caches = [port for port in signatures[role].inputs if "cache" in port.name]
        assert sum(4 * math.prod(map(int, port.shape[1:])) for port in caches) == wanted


def test_bytes_are_those_of_a_bundle(tmp_path: Path) -> None:
    target, drafter = _muse(tmp_path)
    made = estimate(outline_target(target), outline_drafter(drafter), [CONTEXT])
    manifest = read_manifest(bundle := build(target, drafter, tmp_path / "bundle", BuildOptions(context=CONTEXT)))
    stored = 0
    for graph in (*manifest.target.graphs, *manifest.drafter.graphs):
        for tensor in onnx.load(bundle / graph.file, load_external_data=False).graph.initializer:
            stored += next(
                (int(entry.value) for entry in tensor.external_data if entry.key == "length"), len(tensor.raw_data)
            )
    weights, needs = made.weights[0], made.needs[0]
    assert stored == pytest.approx(weights.target + weights.drafter + needs.tables, rel=RELATIVE, abs=ABSOLUTE)
    caches = [
        port
        for graph in (manifest.target.graphs[0], manifest.drafter.graphs[1])
        for port in graph.inputs
        if "cache" in port.name
    ]
    assert needs.rings == 4, "three layers of the target and one of the drafter"
    assert (
        sum(4 * math.prod(map(int, port.shape[1:])) for port in caches)
        == needs.target_cache + needs.drafter_cache
        < needs.full_cache
    )


def test_a_published_shape_is_what_its_authors_say() -> None:
    made = estimate(
        outline_target(CONFIGS / "muse-glimmer-30b.json"),
        outline_drafter(CONFIGS / "muse-glimmer-30b-assistant.json"),
        [8192, 131072],
    )
    assert made.target.windows.count(2048) == 39
    assert 27e9 < sum(_product(shape) for shape in made.target.shapes.values()) < 31e9
    assert made.weights[0].drafter > 5.11e9, (
        "its 5.11 GB of half floats in bytes, and embedding and head of the target beside them"
    )
    whole, short = made.needs[1], made.needs[0]
    full_layer = 2 * 2 * 128 * 4 * 131072  # K and V of two heads, 128 wide, in float32
    assert whole.target_cache - 39 * 2 * 2 * 128 * 4 * 2112 == 13 * full_layer
    assert whole.drafter_cache == short.drafter_cache, "all its layers have windows"


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_a_quantised_configuration_is_planned_with_a_remark() -> None:
    outline = outline_target(CONFIGS / "gpt-oss-20b.json")
    assert outline.windows == (128, None) * 12
    assert "quantised" in outline.notes[0]
    assert 20e9 < sum(_product(shape) for shape in outline.shapes.values()) < 22e9
    forms = estimate(outline, None, [8192]).experts
    assert "only the 4 that a token chooses" in forms["int8"]
    assert "all 32 experts" in forms["fp32"]


def test_what_cannot_be_planned(tmp_path: Path) -> None:
    outline = outline_target(CONFIGS / "qwen3-8b.json")
    drafter = outline_drafter(CONFIGS / "qwen3-8b-dflash.json")
    assert estimate(outline, drafter, [65536]).needs[0].target_cache is None
    with pytest.raises(PairingError, match="are not layers of the target"):
        estimate(outline, outline_drafter(CONFIGS / "muse-glimmer-30b-assistant.json"), [8192])
    for change, said in (
        ({"hidden": 6656}, "6656 wide"),
        ({"target_layers": 30}, "of 30 layers"),
        ({"vocab": 7}, "7 entries"),
    ):
        with pytest.raises(PairingError, match=said):
            estimate(outline, replace(drafter, **change), [8192])
    with pytest.raises(UsageError, match="contexts"):
        estimate(outline, drafter, [16])
    with pytest.raises(UsageError, match="block of 17"):
        estimate(outline, drafter, [8192], 17)
    config = json.loads((CONFIGS / "qwen3-8b-dflash.json").read_text())
    del config["block_size"]
    (tmp_path / "mine.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"mine\.json"):
        outline_drafter(tmp_path / "mine.json")
