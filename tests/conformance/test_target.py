"""The exported target against transformers: logits, taps and cache, over prefill in pieces, a rejected block and
rollback.
"""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
import torch
from forms import FORMS, Cached, bound, load_target, ort_call, runtimes, torch_target
from models import ENDOFTEXT
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.modeling_outputs import CausalLMOutputWithPast

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.trace import trace_target

CONTEXT, TAPS = 48, (2, 0, 3)
TOLERANCE = 1e-3
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 15e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
SPARK = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_hidden_size": 32,
    "routed_scaling_factor": 1.5,
}
TARGETS = {
    "llama": ("llama", {}),
    "llama-tied-scaled-rope": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "qwen3-tied": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 1], "pad_token_id": ENDOFTEXT}),
    "gemma3-text": (
        "gemma3_text",
        {"layer_types": MIXED, "sliding_window": 6, "query_pre_attn_scalar": 24, "final_logit_softcapping": 3.0},
    ),
    "gemma3-multimodal": (
        "gemma3",
        {"layer_types": MIXED, "sliding_window": 6, "rope_parameters": GEMMA_ROPE, "query_pre_attn_scalar": 16},
    ),
    "qwen3-moe": (
        "qwen3_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "sliding_window": 6,
            "rope_parameters": YARN,
        },
    ),
    "muse-spark": (
        "muse_spark",
        {"sliding_window": 6, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]} | SPARK,
    ),
    "muse-glimmer": ("muse_glimmer", {"sliding_window": 6, "num_hidden_layers": 5}),
    "qwen3-sliding": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2, "tie_word_embeddings": False},
    ),
}


REAL = "smollm2-135m"


@pytest.fixture(scope="module", params=[*TARGETS, pytest.param(REAL, marks=pytest.mark.slow)])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TargetCheckpoint:
    if request.param == REAL:
        return open_target(REAL)
    family, overrides = TARGETS[request.param]
    return open_target(models.write_target(tmp_path_factory.mktemp("target"), family, **overrides))


@pytest.fixture(scope="module")
def graph(target: TargetCheckpoint) -> Graph:
    return trace_target(target, TAPS, CONTEXT)


def walk(engine: Cached, tokens: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits and taps of `tokens`, computed in uneven pieces with blocks that are taken back in between."""
    logits, taps = [], []
    position = 0
    for width, wrong in ((9, 0), (1, 4), (4, 8), (2, 0), (8, 1)):
        if wrong:
            engine.verify([models.MASK] * wrong, position)
        piece = engine.verify(tokens[position : position + width], position)
        logits.append(piece[0])
        taps.append(piece[1])
        position += width
    assert position == len(tokens)
    return np.concatenate(logits), np.concatenate(taps)


def prompt(target: TargetCheckpoint) -> list[int]:
    tokens: list[int] = torch.randint(4, target.spec.vocab, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    return tokens


@pytest.fixture(scope="module")
def expected(target: TargetCheckpoint) -> CausalLMOutputWithPast:
    """What transformers computes in one pass, by its own class of the whole checkpoint, loaded by itself (of a GGUF
    file, with our weights).
    """
    kind = AutoModelForImageTextToText if target.spec.family in models.VISION else AutoModelForCausalLM
    model = (
        load_target(target) if target.path.is_file() else kind.from_pretrained(target.path, dtype=torch.float32).eval()
    )
    with torch.no_grad():
        return model(torch.tensor([prompt(target)]), output_hidden_states=True, use_cache=True)


def check(engine: Cached, target: TargetCheckpoint, expected: CausalLMOutputWithPast) -> None:
    tokens = prompt(target)
    logits, taps = walk(engine, tokens)
    wanted = expected.logits[0].numpy()
    np.testing.assert_allclose(logits, wanted, atol=TOLERANCE, rtol=0)
    assert (logits.argmax(-1) == wanted.argmax(-1)).all()
    assert (wanted.argmax(-1) != wanted.argmax(-1)[0]).any(), "a model that always says the same proves nothing"
    np.testing.assert_allclose(
        taps, torch.cat([expected.hidden_states[tap + 1][0] for tap in TAPS], -1).numpy(), atol=TOLERANCE, rtol=0
    )
    for layer, entry in enumerate(expected.cache.layers):
        for kind, rows in (("k", entry.keys), ("v", entry.values)):
            kept = rows.shape[2]  # a sliding layer of transformers forgets what it cannot see
            cache = engine.caches[f"{kind}_cache_{layer}"][:, :, : len(tokens)]
            np.testing.assert_allclose(cache[:, :, -kept:], rows.numpy(), atol=TOLERANCE, rtol=0)


def test_the_traced_module_is_the_model(
    target: TargetCheckpoint, graph: Graph, expected: CausalLMOutputWithPast
) -> None:
    with torch_target(target, graph.signature, TAPS, CONTEXT) as call:
        check(Cached(graph.signature, call), target, expected)


@pytest.mark.parametrize("form", FORMS)
def test_every_lowered_form_is_the_model(
    target: TargetCheckpoint, graph: Graph, expected: CausalLMOutputWithPast, form: str, tmp_path: Path
) -> None:
    path = bound(graph, form, {"target": target.tensors}, tmp_path)
    # onnx's own evaluator is slow, and families differ in what it runs only by where the operators stand.
    chosen = runtimes(form) if target.spec.family in ("llama", "qwen3", "gpt_oss") else runtimes(form)[-1:]
    for runtime in chosen:
        check(Cached(graph.signature, runtime(path)), target, expected)


@pytest.mark.parametrize("target", ["llama"], indirect=True)
def test_pick_chooses_the_rows_that_pass_the_head(target: TargetCheckpoint, graph: Graph, tmp_path: Path) -> None:
    call = ort_call(bound(graph, "fp32", {"target": target.tensors}, tmp_path))
    engine = Cached(graph.signature, call)
    whole, _ = engine.verify([5, 9, 17, 33], 0)
    picked = engine.run(call, {"tokens": np.array([[5, 9, 17, 33]], np.int32), "pick": np.array([3, 1], np.int32)}, 0)
    np.testing.assert_allclose(picked["logits"][0], whole[[3, 1]], atol=1e-5)
    assert picked["taps"].shape[1] == 4
