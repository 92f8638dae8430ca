"""The target one layer at a time: what transformers' whole model computes, in the memory of a layer."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from models import write_target
from torch import nn

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.layerwise import LayerwiseModel
from dflash_compile.export.checkpoints.torch_model import load_model

TEXTS = [
    torch.randint(4, 60, (count,), generator=torch.Generator().manual_seed(count)).tolist() for count in (40, 1, 17)
]
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    "gemma3": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "smollm3": {"no_rope_layers": [1, 0, 1, 0]},
    "muse_glimmer": {},
    "muse_spark": {
        "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "moe_hidden_size": 32,
    },
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [1]},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_computes_what_it_does_in_the_whole_model(family: str, tmp_path: Path) -> None:
    """Bit for bit: the last layer of one text, all layers by what they hand on."""
    checkpoint = open_target(write_target(tmp_path / "target", family, **FAMILIES[family]))
    whole, model = load_model(checkpoint).model, LayerwiseModel(checkpoint, TEXTS)
    with torch.inference_mode():
        expected = [whole(torch.tensor([text]), output_hidden_states=True, use_cache=False) for text in TEXTS]
    assert len(model.names) == checkpoint.spec.layers
    for number, name in enumerate(model.names):
        assert f"{name}.self_attn.q_proj.weight" in checkpoint.tensors.shapes()
        for state, out in zip(model.states, expected, strict=True):
            assert torch.equal(state, out.hidden_states[number]), (name, "is given something else")
        with model.next() as (_, texts):
            assert sum(1 for _ in texts) == len(TEXTS)
    for state, out in zip(model.states, expected, strict=True):
        assert torch.equal(whole.norm(state), out.last_hidden_state)


def test_weights_of_one_layer_are_in_memory_however_many_there_are(tmp_path: Path) -> None:
    checkpoint = open_target(write_target(tmp_path / "target", num_hidden_layers=8, shard_size="100KB"))
    shapes = checkpoint.tensors.shapes()
    gc.collect()
    before = parameter_bytes()
    model = LayerwiseModel(checkpoint, TEXTS)
    layer = sum(4 * torch.Size(shapes[name]).numel() for name in shapes if name.startswith(f"{model.names[0]}."))
    peaks = [parameter_bytes() - before]
    for _ in model.names:
        with model.next() as (_, texts):
            peaks.extend(parameter_bytes() - before for _ in texts)
        peaks.append(parameter_bytes() - before)
    assert layer <= max(peaks) < 1.05 * layer
    assert min(peaks) == 0


def parameter_bytes() -> int:
    """Of all parameters of all modules that are alive."""
    alive = (thing for thing in gc.get_objects() if type(thing) is nn.Parameter)
    return sum({one.data_ptr(): one.nbytes for one in alive if not one.is_meta}.values())


def test_a_layer_that_fails_leaves_no_weights_behind(tmp_path: Path) -> None:
    checkpoint = open_target(write_target(tmp_path / "target"))
    model, before = LayerwiseModel(checkpoint, TEXTS), parameter_bytes()
    with suppress(KeyboardInterrupt), model.next() as (_, texts):
        next(texts)
        raise KeyboardInterrupt
    assert parameter_bytes() == before
    assert model.done == 0
