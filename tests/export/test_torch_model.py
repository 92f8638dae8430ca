"""The target as a runnable transformers model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from models import write_target
from transformers import AutoModelForCausalLM

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.torch_model import load_model

TOKENS = torch.arange(4, 40)[None]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_it_computes_what_transformers_own_loader_computes(tmp_path: Path, family: str) -> None:
    folder = write_target(tmp_path / "target", family)
    expected = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(TOKENS).logits
    torch.testing.assert_close(load_model(open_target(folder))(TOKENS).logits, expected)


@torch.no_grad()
def test_what_is_done_to_one_model_does_not_reach_the_next(tmp_path: Path) -> None:
    checkpoint = open_target(write_target(tmp_path / "target"))
    before = checkpoint.config.to_dict(), checkpoint.config._attn_implementation
    first = load_model(checkpoint, torch.bfloat16)
    first.set_attn_implementation("eager")
    assert (checkpoint.config.to_dict(), checkpoint.config._attn_implementation) == before
    assert load_model(checkpoint).config._attn_implementation != "eager"
