"""Tracing: reads no weight, leaves transformers as it found it, and refuses what it cannot trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import models
import pytest
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama

from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.families import family_of
from dflash_compile.export.tracing.graph import Graph
from dflash_compile.export.tracing.hooks import ATTENTION, hooked
from dflash_compile.export.tracing.rope import drafter_tables, rotary_tables
from dflash_compile.export.tracing.trace import trace_draft, trace_inject, trace_target
from dflash_compile.runtime.errors import CheckpointError, IncompatibleError


class Unreadable:
    """A source whose tensors must not be read."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        raise AssertionError(f"tracing read {name}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_target(tmp_path_factory.mktemp("target"), "llama", tie_word_embeddings=True)


@pytest.fixture(scope="module")
def target(folder: Path) -> TargetCheckpoint:
    opened = open_target(folder)
    return replace(opened, tensors=Unreadable(opened.tensors.shapes()))


@pytest.fixture(scope="module")
def graphs(folder: Path, target: TargetCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Graph]:
    opened = open_drafter(models.write_drafter(tmp_path_factory.mktemp("drafter"), folder))
    drafter = replace(opened, tensors=Unreadable(opened.tensors.shapes()))
    return {
        "target": trace_target(target, opened.spec.taps, 32),
        "inject": trace_inject(drafter, target.spec, 32),
        "draft": trace_draft(drafter, target.spec, 32),
    }


def test_no_weight_is_read_or_held(graphs: dict[str, Graph]) -> None:
    for graph in graphs.values():
        held = [value for value in graph.program.state_dict.values() if type(value) is torch.Tensor]
        assert not held, "a fake tensor is of a subclass"


def test_every_value_has_one_origin(graphs: dict[str, Graph]) -> None:
    for graph in graphs.values():
        named = {*graph.program.graph_signature.parameters, *graph.program.graph_signature.buffers}
        assert named == graph.weights.keys() | graph.constants.keys()
        assert not graph.weights.keys() & graph.constants.keys()


def test_weights_name_tensors_of_their_checkpoints(graphs: dict[str, Graph], target: TargetCheckpoint) -> None:
    owners = {role: {ref.owner for ref in graph.weights.values()} for role, graph in graphs.items()}
    assert owners == {"target": {"target"}, "inject": {"drafter"}, "draft": {"target", "drafter"}}
    named = {ref.tensor for ref in graphs["target"].weights.values()}
    assert named == set(target.tensors.shapes()), "a tied head is read from the embedding"


def test_sensitive_weights_are_marked(graphs: dict[str, Graph]) -> None:
    exact = {ref.tensor for ref in graphs["inject"].weights.values() if ref.exact}
    assert exact == {"fc.weight", "hidden_norm.weight"}


def test_rows_may_be_fixed(target: TargetCheckpoint) -> None:
    graph = trace_target(target, (1,), 32, rows=4)
    assert [port.shape for port in graph.signature.inputs[:3]] == [(1, 4), (1,), (4,)]


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_are_undone(target: TargetCheckpoint, fails: bool) -> None:
    rotate, norm = modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaRMSNorm.forward
    with torch.device("meta"):
        model = modeling_llama.LlamaForCausalLM(target.config)
    implementation = model.config._attn_implementation
    try:
        with hooked(model, family_of("llama"), (0, 1)):
            assert modeling_llama.apply_rotary_pos_emb is not rotate
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert modeling_llama.apply_rotary_pos_emb is rotate
    assert modeling_llama.LlamaRMSNorm.forward is norm
    assert ATTENTION not in ALL_ATTENTION_FUNCTIONS
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_unknown_family_is_named(target: TargetCheckpoint) -> None:
    with pytest.raises(IncompatibleError, match="mamba"):
        trace_target(replace(target, spec=replace(target.spec, family="mamba")), (0,), 32)


class Stretching(nn.Module):
    """A rotary module whose frequencies depend on the length of the sequence."""

    rope_type, original_max_seq_len = "dynamic", 64

    def __init__(self, config: object) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * torch.ones(8)
        return angles.cos(), angles.sin()


def test_rotary_tables_refuse_lengths_without_a_table() -> None:
    assert rotary_tables(Stretching, None, 64)["cos"].shape == (64, 4)
    with pytest.raises(IncompatibleError, match="dynamic"):
        rotary_tables(Stretching, None, 65)


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "no such"}, {"rope_type": "linear"}, {"rope_type": "linear", "factor": "two"}], ids=str
)
def test_a_rotary_scaling_that_cannot_be_used_is_the_checkpoints_fault(
    tmp_path: Path, scaling: dict[str, object]
) -> None:
    target = models.write_target(tmp_path / "target")
    drafter = open_drafter(models.write_drafter(tmp_path / "drafter", target))
    with pytest.raises(CheckpointError, match="rotary scaling"):
        drafter_tables(replace(drafter.spec, rope_scaling=scaling), 64)
