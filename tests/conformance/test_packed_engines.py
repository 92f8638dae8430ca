"""Packed forms of quantised engines, mapped from the cache, against the engines of the bundle: bit for bit, in every
width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import numpy as np
import onnx
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.engines import Engines

PROMPT = [7, 30, 12, 44, 9, 25, 31]
WIDTHS = (1, 2, 3, 6)


@pytest.fixture(scope="module", params=[("int4", "int8"), ("fp32", "fp32")], ids="/".join)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    target = models.write_target(folder / "target", "qwen3", intermediate_size=160)
    drafter = models.write_drafter(folder / "drafter", target)
    target_precision, drafter_precision = request.param
    return build(
        target,
        drafter,
        folder / "bundle",
        BuildOptions(precision=target_precision, drafter_precision=drafter_precision, context=64),
    )


def walk(engines: Engines) -> list[object]:
    """Choices, proposals, and the bytes of logits and taps over a few cycles."""
    target: Any = engines.target
    drafter = engines.drafter
    seen: list[object] = [target.prefill(PROMPT, 0)]
    drafter.inject(target.taps, len(PROMPT), 0)
    position = len(PROMPT)
    for width in WIDTHS:
        proposals = list(drafter.draft(PROMPT[0], position, min(width + 1, drafter.block)))
        seen += [proposals, target.verify([PROMPT[0], *proposals][:width], position)]
        rows = target.taps.memory.read((width, target._width))
        seen += [rows.tobytes(), target._logits.read((width, target.vocab)).tobytes()]
        drafter.inject(target.taps, width, position)
        position += width
    return seen


def test_every_number_is_the_same(bundle: Path, tmp_path: Path) -> None:
    opened, backend = open_bundle(bundle), find_backend("onnxruntime")
    expected = walk(backend.open_engines(opened, EngineOptions(threads=1)))
    for threads in (1, 1, 2):
        engines = backend.open_engines(opened, EngineOptions(threads=threads, cache=tmp_path / "cache"))
        assert engines.notes == ()
        assert walk(engines) == expected
    assert len(list((tmp_path / "cache" / "engines").iterdir())) == 3


def test_the_products_are_packed(bundle: Path, tmp_path: Path) -> None:
    """Otherwise the file would be of no use: its weights would be packed in memory at every load."""
    opened = open_bundle(bundle)
    find_backend("onnxruntime").open_engines(opened, EngineOptions(threads=1, cache=tmp_path / "cache"))
    for path in (tmp_path / "cache" / "engines").iterdir():
        graph = onnx.load(path / "engine.onnx", load_external_data=False).graph
        weights = {node.input[1] for node in graph.node if node.op_type in ("MatMulNBits", "FusedMatMul")}
        packed = {
            tensor.name
            for tensor in graph.initializer
            if any(entry.key.startswith("prepacked") for entry in tensor.external_data)
        }
        large = {tensor.name for tensor in graph.initializer if np.prod(tensor.dims) > 1024}
        assert weights & large <= packed
        assert packed
