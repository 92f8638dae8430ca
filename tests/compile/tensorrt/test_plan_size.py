"""What a plan weighs, and that it is the same twice: two layers as wide as those of a 1.7B model, compiled for real."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

import pytest
import torch
from transformers import Qwen3Config

from dflash_compile.compile.graphs.bind import bind, size_of
from dflash_compile.compile.graphs.onnx_graph import SemanticModel, to_onnx
from dflash_compile.compile.tensorrt.architectures import ARCHITECTURES
from dflash_compile.compile.tensorrt.builder import Request, build_plan
from dflash_compile.compile.tensorrt.engine import Engine
from dflash_compile.compile.tensorrt.engine_info import inspect_plan
from dflash_compile.compile.tensorrt.lower import Form, lower
from dflash_compile.compile.tensorrt.ports import body_ports
from dflash_compile.compile.tensorrt.precisions import PRECISIONS
from dflash_compile.compile.tensorrt.signatures import body_signature
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint, TextSource
from dflash_compile.export.checkpoints.skeleton import parameter_shapes
from dflash_compile.export.families import family_of
from dflash_compile.export.spec import TargetSpec
from dflash_compile.export.tracing.signature import Signature
from dflash_compile.export.tracing.trace import trace_target
from dflash_compile.runtime.bundle.files import sha256

pytestmark = pytest.mark.slow
LAYERS, HIDDEN, WIDE, VOCAB, ROWS = 2, 2048, 6144, 512, 576
CONFIG = Qwen3Config(
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=WIDE,
    vocab_size=VOCAB,
    tie_word_embeddings=True,
)


class Random:
    """Weights made as they are read, no two alike: TensorRT stores equal ones once."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return parameter_shapes(family_of("qwen3"), CONFIG)

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(crc32(name.encode()) + start)
        return torch.randn((stop - start, *self.shapes()[name][1:]), generator=generator) * 0.02


@pytest.fixture(scope="module")
def traced() -> tuple[SemanticModel, Signature]:
    spec = TargetSpec("qwen3", "random", LAYERS, HIDDEN, 16, 8, 128, WIDE, VOCAB, 4096, True, "bfloat16", 1e-6, 1e6)
    target = TargetCheckpoint(spec, CONFIG, Random(), TextSource(b"", None), Path(), {})
    graph = trace_target(target, (0, 1), ROWS, tables=False)
    return to_onnx(graph), graph.signature


class Body:
    """The layers of that model, bound for one architecture."""

    def __init__(self, traced: tuple[SemanticModel, Signature], precision: str, arch: str, folder: Path) -> None:
        form, self.folder = Form(PRECISIONS[precision], ARCHITECTURES[arch].folds), folder
        signature = body_signature(traced[1], form.precision.cache_dtype)
        self.lowered, self.arch = lower(traced[0].copy(), form, signature, body_ports), arch
        self.onnx = bind(self.lowered, {"target": Random()}, folder, "graph.onnx")

    def compiled(self, widths: tuple[int, ...], name: str = "body.plan") -> Path:
        calls = tuple(("verify", rows) for rows in widths)
        engine = Engine("target", calls, self.lowered, ARCHITECTURES[self.arch].folds, (self.arch,), 0, True)
        request = Request(
            "tensorrt_rtx",
            str(self.onnx),
            str(self.folder / name),
            self.arch.upper(),
            engine.signature.caches,
            LAYERS,
            not engine.folds,
            engine.profiles(),
        )
        build_plan(request)
        self.records = [inspect_plan(self.folder / name, engine.cache_shape, number) for number in range(len(widths))]
        return self.folder / name

    @property
    def encoded(self) -> int:
        return size_of(self.lowered)


@pytest.mark.parametrize("arch", ["sm86", "sm89", "sm120"])
def test_widths_share_weights_on_every_architecture(
    arch: str, traced: tuple[SemanticModel, Signature], tmp_path: Path
) -> None:
    body = Body(traced, "fp16", arch, tmp_path)
    plan = body.compiled((64, 16, 2))
    assert plan.stat().st_size < 1.1 * body.encoded
    assert [record.fused_attention for record in body.records] == [LAYERS] * 3
    assert [record.cache_copies for record in body.records] == [2 * LAYERS if arch == "sm86" else 0] * 3
    again = body.compiled((64, 16, 2), "again.plan")
    assert sha256(again) == sha256(plan), "the same bytes from the same graph"


def test_what_a_width_costs_does_not_follow_the_weights(
    traced: tuple[SemanticModel, Signature], tmp_path: Path
) -> None:
    """The plan's text and kernels, as much at int4 as at fp16."""
    body = Body(traced, "int4", "sm120", tmp_path)
    two, three = (body.compiled(widths).stat().st_size for widths in ((64, 16), (64, 16, 2)))
    assert three - two < 0.08 * body.encoded
    assert two < 1.15 * body.encoded, "with as much again of it in two programs"


def test_one_row_alone_would_store_halves_again(traced: tuple[SemanticModel, Signature], tmp_path: Path) -> None:
    """Why the narrowest verify has two rows; should TensorRT stop needing it, this test says so."""
    body = Body(traced, "fp16", "sm120", tmp_path)
    assert body.compiled((16, 1)).stat().st_size > 1.5 * body.encoded
