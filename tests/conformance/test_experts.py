"""The sparse form of experts: what it computes, that rows do not depend on what comes with them, and that it reads what
it should.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import models
import numpy as np
import onnx
import pytest
import torch
from forms import Cached, bound, ort_call, torch_target
from models import VOCAB
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from dflash_compile.compile.graphs.encoding import Floats
from dflash_compile.compile.onnxruntime.expert_weights import ExpertGroups, expert_blocks
from dflash_compile.compile.onnxruntime.precision import Precision, precision_of
from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.trace import trace_target

CONTEXT, TAPS = 64, (2, 0)
SPARK = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "moe_hidden_size": 32,
    "routed_scaling_factor": 1.5,
}
TARGETS = {
    "qwen3-moe": (
        "qwen3_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gpt-oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "muse-spark": ("muse_spark", {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]} | SPARK),
}
TOKENS: list[int] = torch.randint(4, VOCAB - 4, (40,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    family, overrides = TARGETS[request.param]
    return open_target(models.write_target(tmp_path_factory.mktemp("target"), family, **overrides))


@pytest.fixture(scope="module")
def graph(target: TargetCheckpoint) -> Graph:
    return trace_target(target, TAPS, CONTEXT, sparse=True)


def _logits(target: TargetCheckpoint, folder: Path) -> np.ndarray:
    kind = AutoModelForImageTextToText if target.spec.family in models.VISION else AutoModelForCausalLM
    with torch.no_grad():
        return kind.from_pretrained(folder, dtype=torch.float32).eval()(torch.tensor([TOKENS])).logits[0].numpy()


def _decoded(name: str, value: torch.Tensor, blocks: ExpertGroups, family: str) -> torch.Tensor:
    """`value` as the numbers it is stored as."""
    if ".experts." not in name or value.ndim < 2 or "bias" in name:
        return value
    turned = family == "gpt_oss"
    rows = value.transpose(-1, -2) if turned else value
    parts = rows.unflatten(-1, (-1, blocks.block))
    levels = 2 ** (blocks.bits - 1) - 1
    scale = parts.abs().amax(-1, keepdim=True) / levels
    back = (torch.round(parts / scale).clamp(-levels, levels) * scale).flatten(-2)
    return (back.transpose(-1, -2) if turned else back).contiguous()


def test_the_traced_module_is_the_model(target: TargetCheckpoint, graph: Graph) -> None:
    with torch_target(target, graph.signature, TAPS, CONTEXT, sparse=True) as call:
        found, _ = Cached(graph.signature, call).verify(TOKENS, 0)
    np.testing.assert_allclose(found, _logits(target, target.path), atol=1e-3, rtol=0)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_engine_is_transformers_with_the_stored_experts(
    target: TargetCheckpoint, graph: Graph, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against transformers over weights rounded as they are stored: what is left is how the kernel rounds what it
    multiplies them with.
    """
    blocks = expert_blocks(target.config, precision_of(precision))
    assert blocks is not None
    rounded = tmp_path / "rounded"
    shutil.copytree(target.path, rounded)
    weights = load_file(target.path / "model.safetensors")
    stored = {name: _decoded(name, value, blocks, target.spec.family) for name, value in weights.items()}
    assert any(not torch.equal(stored[name], weights[name]) for name in weights)
    save_file(stored, rounded / "model.safetensors", metadata={"format": "pt"})
    # Everything else stays in float32, so that experts alone make a difference.
    monkeypatch.setattr(Precision, "linear", lambda *_, **__: Floats())
    monkeypatch.setattr(Precision, "embedding", lambda _: Floats())
    path = bound(graph, precision, {"target": target.tensors}, tmp_path)
    operators = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    assert operators.count("QMoE") == (4 if target.spec.family == "gpt_oss" else 3)
    found, _ = Cached(graph.signature, ort_call(path)).verify(TOKENS, 0)
    wanted, plain = _logits(target, rounded), _logits(target, target.path)
    near, far = np.abs(found - wanted).mean(), np.abs(found - plain).mean()
    assert near < 0.05 * np.abs(wanted).mean()
    assert near < far, "nearer to the rounded weights than to those that were there"


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_rows_are_the_same_bits_whatever_comes_with_them(
    target: TargetCheckpoint, graph: Graph, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of experts alone: everything else stays in float32."""
    monkeypatch.setattr(Precision, "linear", lambda *_, **__: Floats())
    call = ort_call(bound(graph, precision, {"target": target.tensors}, tmp_path))
    answers = {}
    for width in (2, 5, 8, 10):
        engine = Cached(graph.signature, call)
        answers[width] = np.concatenate(
            [engine.verify(TOKENS[start : start + width], start)[0] for start in range(0, 40, width)]
        )
    assert {width for width, found in answers.items() if (found != answers[2]).any()} == set()


def test_the_form_follows_precision_and_widths(target: TargetCheckpoint) -> None:
    assert expert_blocks(target.config, precision_of("fp32")) is None
    assert expert_blocks(target.config, precision_of("int4")) == ExpertGroups(4, 32)
