"""Opening targets whose checkpoint holds more than, or other names than, a causal language model: text decoders,
experts stored apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import IM_END, write_target
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.runtime.errors import CheckpointError

EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "muse_glimmer": {},
    "muse_spark": {"moe_hidden_size": 32, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"], **EXPERTS},
    "gemma3": {"sliding_window": 8},
}
TOKENS = torch.tensor([[9, 8, 7, 6, 5, 4, 40, 41, 42, 43]])


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refused(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_target(folder)
    return str(caught.value)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_decoder_of_a_multimodal_checkpoint(tmp_path: Path, family: str) -> None:
    target = open_target(write_target(tmp_path / "t", family, **FAMILIES[family]))
    assert (target.spec.family, target.spec.layers, target.spec.hidden, target.spec.vocab) == (family, 4, 64, 384)
    assert target.spec.eos_ids[0] == IM_END
    theirs = AutoModelForImageTextToText.from_pretrained(tmp_path / "t", dtype=torch.float32).eval()
    expected = {name.replace("model.language_model.", "model."): value for name, value in theirs.state_dict().items()}
    for name, shape in target.tensors.shapes().items():
        assert shape == tuple(expected[name].shape)
        assert torch.equal(target.read(name), expected[name]), name
    assert not any("vision" in name or "audio" in name for name in target.tensors.shapes())
    with torch.no_grad():
        torch.testing.assert_close(load_model(target)(TOKENS).logits, theirs(TOKENS).logits, atol=1e-5, rtol=1e-5)


def test_what_a_text_decoder_must_say(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t", "muse_glimmer")
    edit(target, lambda config: config["text_config"].update(layer_rope_theta=[5e5, 1e4, 1e4, 0]))
    assert "rotary bases" in refused(target)
    edit(target, lambda config: config["text_config"].pop("rms_norm_eps"))
    assert "lacks text_config.rms_norm_eps" in refused(target)


def test_a_tensor_of_no_known_tower_is_surplus(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t", "muse_glimmer")
    weights = load_file(target / "model.safetensors")
    save_file(weights | {"model.taste_tower.weight": torch.zeros(2)}, target / "model.safetensors")
    assert "1 surplus: model.taste_tower.weight" in refused(target)


def test_published_gemma3_configurations_leave_out_what_the_class_says(tmp_path: Path) -> None:
    target = write_target(tmp_path / "t", "gemma3")
    edit(
        target,
        lambda config: [
            config["text_config"].pop(key) for key in ("max_position_embeddings", "rms_norm_eps", "rope_parameters")
        ],
    )
    spec = open_target(target).spec
    assert (spec.max_positions, spec.rms_eps, spec.rope_theta) == (131072, 1e-6, 1e6)
    edit(target, lambda config: config["text_config"].pop("hidden_size"))
    assert "lacks text_config.hidden_size" in refused(target)


def test_experts_stored_one_by_one_are_stacked(tmp_path: Path) -> None:
    folder = write_target(tmp_path / "t", "qwen3_moe", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=24)
    stored = load_file(folder / "model.safetensors")
    assert "model.layers.0.mlp.experts.2.up_proj.weight" in stored, "else nothing is stacked here"
    target = open_target(folder)
    assert (target.spec.experts, target.spec.experts_used) == (3, 2)
    expected = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert target.tensors.shapes().keys() == expected.keys()
    for name, shape in target.tensors.shapes().items():
        assert shape == tuple(expected[name].shape)
        assert torch.equal(target.read(name), expected[name]), name
    assert torch.equal(
        target.tensors.rows("model.layers.1.mlp.experts.down_proj", 1, 2),
        expected["model.layers.1.mlp.experts.down_proj"][1:2],
    )
    del stored["model.layers.2.mlp.experts.1.gate_proj.weight"]
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    assert "missing: model.layers.2.mlp.experts.gate_up_proj" in refused(folder)
