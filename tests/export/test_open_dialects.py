"""Opening drafters of the layouts that share the draft module of version 1, or add to it: what the spec says, and what
is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf_drafter
from models import MASK, write_assistant, write_deepspec, write_drafter, write_drafter2, write_target
from safetensors.torch import load_file

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.parameter_names import EMBEDDING
from dflash_compile.export.spec import Convolution, DrafterSpec, Selector
from dflash_compile.export.tracing.trace import trace_draft
from dflash_compile.runtime.errors import CheckpointError, PairingError

SLIDING = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def every_field_says_where_it_came_from(spec: DrafterSpec) -> None:
    assert spec.evidence.keys() == {field.name for field in fields(DrafterSpec)} - {"evidence"}


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_drafter(path)
    return str(caught.value)


# Muse assistant


@pytest.fixture
def muse(tmp_path: Path) -> tuple[Path, Path]:
    target = write_target(tmp_path / "target", "muse_glimmer")
    return target, write_assistant(tmp_path / "drafter", target, layer_types=SLIDING, sliding_window=6)


def test_a_muse_assistant(muse: tuple[Path, Path]) -> None:
    opened = open_drafter(muse[1])
    spec = opened.spec
    assert (spec.dialect, spec.block, spec.mask_id, spec.taps, spec.vocab) == ("muse_assistant", 6, MASK, (2, 0), None)
    assert (spec.windows, spec.causal) == ((7, None), (False, False)), "a row more than others take in"
    every_field_says_where_it_came_from(spec)
    stored = load_file(muse[1] / "model.safetensors")
    assert torch.equal(opened.read("fc.weight"), stored["encoder.fc.weight"])
    assert torch.equal(opened.read("hidden_norm.weight"), stored["encoder.output_norm_enc.weight"])
    assert len(pair(open_target(muse[0]), opened).warnings) == 2, (
        "taps in falling order and another RoPE base, nothing else"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": None}, "lacks block_size"),
        ({"target_layer_ids": None}, "lacks target_layer_ids"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 2"),
        ({"is_causal": True}, "unknown keys: is_causal"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "11 surplus"),
    ],
    ids=str,
)
def test_what_a_muse_assistant_must_say(muse: tuple[Path, Path], change: dict[str, Any], said: str) -> None:
    assert said in refused(edit(muse[1], lambda config: config.update(change)))


# DFlash2


def test_a_dflash2_drafter(target: Path, tmp_path: Path) -> None:
    spec = open_drafter(write_drafter2(tmp_path / "d", target)).spec
    assert (spec.dialect, spec.convolution, spec.selector) == ("zlab_v2", Convolution(2, 16), Selector(8, 5))
    assert (spec.embedding_scale, spec.output_multiplier, spec.logit_softcap) == (1.5, 0.5, 6.0)
    assert (spec.windows, spec.causal) == ((7, 7), (False, False))
    every_field_says_where_it_came_from(spec)


@pytest.mark.parametrize("key", ["conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"])
def test_dflash2_sizes_are_not_guessed(target: Path, tmp_path: Path, key: str) -> None:
    assert f"lacks {key}" in refused(
        edit(write_drafter2(tmp_path / "d", target), lambda config: config["dflash_config"].pop(key))
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"conv_group_size": 24}, "do not divide"),
        ({"selector_top_k": 1}, "nothing to choose"),
        ({"selector_rank": 9}, "of the wrong shape"),
    ],
)
def test_dflash2_sizes_that_cannot_be(target: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert said in refused(
        edit(write_drafter2(tmp_path / "d", target), lambda config: config["dflash_config"].update(change))
    )


# ModelOpt


def modelopt(target: Path, folder: Path, layer_types: list[str] | None = None, **settings: Any) -> Path:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    settings = {
        "use_swa": True,
        "swa_window_size": 5,
        "causal": False,
        "mask_token_id": MASK,
        "target_layer_ids": [0, 1],
    } | settings
    return write_drafter(folder, target, dflash_config=settings, layer_types=layer_types, rope_scaling=yarn)


def test_a_modelopt_drafter(target: Path, tmp_path: Path) -> None:
    spec = open_drafter(modelopt(target, tmp_path / "all")).spec
    assert (spec.dialect, spec.windows, spec.causal) == ("modelopt", (5, 5), (False, False))
    every_field_says_where_it_came_from(spec)
    assert spec.rope_scaling == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    some = open_drafter(modelopt(target, tmp_path / "some", SLIDING, causal=True)).spec
    assert (some.windows, some.causal) == ((5, None), (True, True))
    none = open_drafter(modelopt(target, tmp_path / "none", use_swa=False)).spec
    assert none.windows == (None, None)


@pytest.mark.parametrize(
    ("kinds", "settings", "said"),
    [
        (["full_attention"] * 2, {}, "names no sliding layer"),
        (SLIDING, {"use_swa": False}, "names a sliding layer"),
        (None, {"causal": None}, "lacks causal"),
        (None, {"swa_window_size": None}, "lacks swa_window_size"),
        (None, {"attention_sink_bias": True}, "attention_sink_bias"),
    ],
    ids=str,
)
def test_what_a_modelopt_drafter_must_say(
    target: Path, tmp_path: Path, kinds: list[str] | None, settings: dict[str, Any], said: str
) -> None:
    assert said in refused(modelopt(target, tmp_path / "d", kinds, **settings))


# DeepSpec


def test_a_deepspec_drafter_embeds_and_proposes_by_itself(target: Path, tmp_path: Path) -> None:
    opened = open_drafter(write_deepspec(tmp_path / "d", target))
    assert (opened.spec.block, opened.spec.sample_from_anchor, opened.spec.own_embedding) == (8, True, True)
    every_field_says_where_it_came_from(opened.spec)
    graph = trace_draft(opened, open_target(target).spec, 64)
    assert {ref.owner for ref in graph.weights.values()} == {"drafter"}, "nothing is the target's"
    assert {ref.tensor for ref in graph.weights.values()} >= {EMBEDDING, "lm_head.weight"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"markov_rank": 256}, "DSpark"),
        ({"markov_rank": None}, "lacks markov_rank"),
        ({"use_swa": True}, "use_swa"),
        ({"vocab_size": 8}, "wrong shape"),
    ],
)
def test_what_a_deepspec_drafter_must_be(target: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert said in refused(edit(write_deepspec(tmp_path / "d", target), lambda config: config.update(change)))


# GGUF


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q8_0])
def test_a_gguf_drafter_is_the_one_it_was_made_of(target: Path, tmp_path: Path, kind: Kind) -> None:
    plain = open_drafter(write_drafter(tmp_path / "d", target, taps=(2, 0)))
    opened = open_drafter(write_gguf_drafter(tmp_path / "d.gguf", plain.path, kind))
    unlike = {"dialect": "gguf", "vocab": None, "target_layers": None}
    assert replace(opened.spec, evidence={}) == replace(plain.spec, evidence={}, **unlike)
    every_field_says_where_it_came_from(opened.spec)
    assert opened.tensors.shapes().keys() == plain.tensors.shapes().keys()
    for name in plain.tensors.shapes():
        torch.testing.assert_close(opened.read(name), plain.read(name), atol=0 if kind == Kind.F32 else 0.02, rtol=0)
    assert pair(open_target(target), opened).taps_width == 128


WINDOWED = {"attention.sliding_window": 5, "attention.sliding_window_pattern": [True, False]}


def test_windows_of_a_gguf_drafter(target: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "d", target)
    spec = open_drafter(
        write_gguf_drafter(tmp_path / "d.gguf", drafter, extra=WINDOWED | {"attention.causal": False})
    ).spec
    assert (spec.windows, spec.causal) == ((5, None), (False, False))


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (WINDOWED, "whether sliding layers look ahead"),
        ({"attention.sliding_window": 5}, "of which layers"),
        ({"target_layers": [0, 2]}, "target_layers cannot be"),
        ({"target_layers": None}, "lacks dflash.target_layers"),
        ({"selector_top_k": 16}, "metadata not understood"),
        ({"block_count": 1}, "11 surplus"),
    ],
    ids=str,
)
def test_what_a_gguf_drafter_must_say(target: Path, tmp_path: Path, extra: dict[str, Any], said: str) -> None:
    assert said in refused(write_gguf_drafter(tmp_path / "d.gguf", write_drafter(tmp_path / "d", target), extra=extra))


def test_forks_of_the_gguf_layout_are_named(target: Path, tmp_path: Path) -> None:
    assert "a fork's" in refused(
        write_gguf_drafter(tmp_path / "d.gguf", write_drafter(tmp_path / "d", target), arch="qwen3-dflash-draft")
    )


def test_a_tap_that_was_not_shifted_is_found_where_it_can_be(target: Path, tmp_path: Path) -> None:
    """A file whose writer counted one too many may tap a layer that the target has not."""
    drafter = write_drafter(tmp_path / "d", target, taps=(0, 2))
    shifted = open_drafter(write_gguf_drafter(tmp_path / "d.gguf", drafter, extra={"target_layers": [2, 5]}))
    with pytest.raises(PairingError, match="not layers of the target"):
        pair(open_target(target), shifted)


def test_what_is_no_drafter_is_told_the_layouts_that_can_be_opened(target: Path) -> None:
    with pytest.raises(CheckpointError, match="zlab_v1: a directory") as caught:
        open_drafter(target)
    assert "unsupported" not in str(caught.value)
