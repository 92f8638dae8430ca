"""Quantised targets against torch with the very weights the quantised ones stand for, and against themselves at other
widths.
"""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
import torch
from forms import Cached, bound, load_target, ort_call

from dflash_compile.compile.onnxruntime.precision import precision_of
from dflash_compile.compile.onnxruntime.quantize import IntGroups
from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.tracing.graph import Graph, WeightRef
from dflash_compile.export.tracing.trace import trace_target

CONTEXT, TAPS = 64, (0, 2)
# What is left is the rounding of activations to int8, in units of the logits' own spread.
TOLERANCE = 0.1


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    return open_target(models.write_target(tmp_path_factory.mktemp("target"), request.param, intermediate_size=160))


@pytest.fixture(scope="module")
def graph(target: TargetCheckpoint) -> Graph:
    return trace_target(target, TAPS, CONTEXT)


@pytest.fixture(scope="module", params=["int8", "int4"])
def engine_path(
    request: pytest.FixtureRequest, target: TargetCheckpoint, graph: Graph, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    return request.param, bound(graph, request.param, {"target": target.tensors}, tmp_path_factory.mktemp("engine"))


def prompt(target: TargetCheckpoint) -> list[int]:
    tokens: list[int] = torch.randint(4, target.spec.vocab, (32,), generator=torch.Generator().manual_seed(3)).tolist()
    return tokens


def stored(target: TargetCheckpoint, name: str) -> dict[str, torch.Tensor]:
    """Every linear weight as an engine of precision `name` has it."""
    precision = precision_of(name)
    weights = {}
    for weight, shape in target.tensors.shapes().items():
        head = weight == "lm_head.weight"
        if len(shape) == 2 and not weight.endswith("embed_tokens.weight"):
            encoding = precision.linear(WeightRef("target", weight), shape, head)
            assert isinstance(encoding, IntGroups)
            weights[weight] = encoding.decode(encoding.encode(target.read(weight)))
    return weights


def test_logits_are_those_of_the_stored_weights(
    target: TargetCheckpoint, graph: Graph, engine_path: tuple[str, Path]
) -> None:
    name, path = engine_path
    tokens = prompt(target)
    logits, _ = Cached(graph.signature, ort_call(path)).verify(tokens, 0)

    def distance(replace: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            wanted = load_target(target, replace)(torch.tensor([tokens])).logits[0].numpy()
        return float(np.abs(logits - wanted).mean() / wanted.std())

    rounded, original = distance(stored(target, name)), distance({})
    assert rounded < TOLERANCE
    if name == "int4":
        assert rounded < original / 2, "the engine is no nearer to its own weights than to the original ones"


def test_rows_do_not_depend_on_the_width(target: TargetCheckpoint, graph: Graph, engine_path: tuple[str, Path]) -> None:
    call = ort_call(engine_path[1])
    tokens = prompt(target)

    def in_pieces(width: int) -> tuple[np.ndarray, np.ndarray]:
        engine = Cached(graph.signature, call)
        pieces = [engine.verify(tokens[start : start + width], start) for start in range(0, len(tokens), width)]
        return np.concatenate([logits for logits, _ in pieces]), np.concatenate([taps for _, taps in pieces])

    narrow = in_pieces(2)
    for width in (4, 8, 16):
        for have, want in zip(in_pieces(width), narrow, strict=True):
            np.testing.assert_array_equal(have, want)
