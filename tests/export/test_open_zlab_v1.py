"""z-lab v1 drafters: read as PyPI `dflash` reads them, written so that it does, and never guessed at."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash.model import DFlashDraftModel
from models import MASK, write_drafter, write_target
from safetensors.torch import load_file, save_file

from dflash_compile.export import open_drafter
from dflash_compile.export.checkpoints import swap
from dflash_compile.export.checkpoints.drafter_folder import TRAINED_WITH
from dflash_compile.export.drafters import zlab_v1
from dflash_compile.export.spec import DrafterSpec
from dflash_compile.runtime.errors import BuildError, CheckpointError, DFlashError, UsageError

SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32, "use_sliding_window": True}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture
def drafter(target: Path, tmp_path: Path) -> Path:
    return write_drafter(tmp_path / "drafter", target, taps=(0, 2))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_drafter(folder)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix
    return caught.value


def test_spec_tensors_and_files(drafter: Path) -> None:
    opened = open_drafter(drafter)
    spec = opened.spec
    assert (spec.dialect, spec.layers, spec.hidden, spec.block, spec.mask_id, spec.taps, spec.target_layers) == (
        "zlab_v1",
        2,
        64,
        8,
        MASK,
        (0, 2),
        4,
    )
    assert (spec.windows, spec.causal, spec.rope_scaling, spec.dtype) == ((None, None), (False, False), None, "float32")
    stored = load_file(drafter / "model.safetensors")
    assert opened.tensors.shapes().keys() == stored.keys()
    assert all(torch.equal(opened.read(name), stored[name]) for name in stored)
    assert set(opened.files) == {"config.json", "model.safetensors"}


def test_every_field_says_where_it_came_from(drafter: Path) -> None:
    opened = open_drafter(drafter)
    derived = {"evidence"}
    assert {field.name for field in fields(DrafterSpec)} - derived - opened.spec.evidence.keys() == set()
    assert opened.spec.evidence["taps"] == "dflash_config.target_layer_ids"
    assert opened.spec.evidence["block"] == "block_size"


@pytest.mark.parametrize(
    "extra",
    [{}, SLIDING, {"is_causal": True}, SLIDING | {"is_causal": False}],
    ids=["full", "sliding", "causal", "sliding, not causal"],
)
def test_windows_and_causality_equal_pypi_dflash(target: Path, tmp_path: Path, extra: dict[str, Any]) -> None:
    folder = write_drafter(tmp_path / "d", target, **extra)
    spec, theirs = open_drafter(folder).spec, DFlashDraftModel.from_pretrained(folder)
    assert spec.windows == tuple(layer.self_attn.sliding_window for layer in theirs.layers)
    assert spec.causal == tuple(layer.self_attn.is_causal for layer in theirs.layers)
    assert (spec.block, spec.mask_id, list(spec.taps)) == (
        theirs.block_size,
        theirs.mask_token_id,
        theirs.target_layer_ids,
    )


def test_causality_inside_dflash_config_yields_to_is_causal(drafter: Path) -> None:
    edit(drafter, lambda config: config["dflash_config"].update(causal=True))
    assert open_drafter(drafter).spec.causal == (True, True)
    edit(drafter, lambda config: config.update(is_causal=False))
    assert open_drafter(drafter).spec.causal == (False, False)


def test_block_size_inside_dflash_config(drafter: Path) -> None:
    edit(drafter, lambda config: config["dflash_config"].update(block_size=config.pop("block_size")))
    spec = open_drafter(drafter).spec
    assert (spec.block, spec.evidence["block"]) == (8, "dflash_config.block_size")


def test_biases_belong_to_attention_bias(target: Path, tmp_path: Path) -> None:
    folder = write_drafter(tmp_path / "d", target, attention_bias=True)
    assert open_drafter(folder).tensors.shapes()["layers.1.self_attn.k_proj.bias"] == (32,)
    edit(folder, lambda config: config.update(attention_bias=False))
    assert "8 surplus" in refused(folder).why


@pytest.mark.parametrize(
    "written",
    [
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}},
    ],
)
def test_rope_scaling_in_both_spellings(drafter: Path, written: dict[str, Any]) -> None:
    edit(drafter, lambda config: (config.pop("rope_theta"), config.update(written)))
    spec = open_drafter(drafter).spec
    assert spec.rope_scaling is not None
    assert (spec.rope_scaling["rope_type"], spec.rope_scaling["factor"], spec.rope_theta) == ("yarn", 4.0, 1e6)


def test_bundled_python_is_ignored(drafter: Path) -> None:
    (drafter / "dflash.py").write_text(f"open({str(drafter / 'ran')!r}, 'w')\n")
    edit(drafter, lambda config: config.update(auto_map={"AutoModel": "dflash.DFlashDraftModel"}))
    open_drafter(drafter)
    assert not (drafter / "ran").exists()


TOP = (
    "block_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
)


@pytest.mark.parametrize("key", TOP)
def test_a_missing_key_is_refused(drafter: Path, key: str) -> None:
    edit(drafter, lambda config: config.pop(key))
    assert key in refused(drafter).what


@pytest.mark.parametrize("key", ["target_layer_ids", "mask_token_id"])
def test_missing_taps_or_mask_are_never_guessed(drafter: Path, key: str) -> None:
    edit(drafter, lambda config: config["dflash_config"].pop(key))
    assert f"lacks {key}" in refused(drafter).what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": "8"}, "block_size"),
        ({"block_size": 0}, "block_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"dflash_config": {"mask_token_id": -1, "target_layer_ids": [0, 2]}}, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": []}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2.5]}}, "target_layer_ids"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": 2}}, "target_layer_ids"),
        ({"mask_token_id": 7}, "twice"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "chunked"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 32}, "use_sliding_window"),
        ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}, "sliding_window"),
        ({"layer_types": None, "use_sliding_window": True}, "layer_types"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"final_logit_softcapping": -30.0}, "final_logit_softcapping"),
        ({"input_embedding_scale": 0}, "input_embedding_scale"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "twice"),
        ({"rope_theta": None, "rope_parameters": [1e6]}, "rope_parameters"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"is_causal": "false"}, "is_causal"),
        ({"attention_bias": "false"}, "attention_bias"),
        (
            {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": "false", "sliding_window": 32},
            "use_sliding_window",
        ),
        ({"dflash_config": [1, 2]}, "mask_token_id"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_malformed_or_contradictory_key_is_refused(drafter: Path, change: dict[str, Any], said: str) -> None:
    edit(drafter, lambda config: config.update(change))
    assert said in str(refused(drafter))


WEIGHTS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "1 missing: fc.weight": lambda weights: weights.pop("fc.weight"),
    "1 missing: layers.1.self_attn.q_norm.weight": lambda weights: weights.pop("layers.1.self_attn.q_norm.weight"),
    "1 surplus: lm_head.weight": lambda weights: weights.update({"lm_head.weight": torch.ones(384, 64)}),
    "hidden_norm.weight is [32], not [64]": lambda weights: weights.update({"hidden_norm.weight": torch.ones(32)}),
}


@pytest.mark.parametrize("said", WEIGHTS)
def test_tensors_must_be_exactly_those_of_the_layout(drafter: Path, said: str) -> None:
    weights = load_file(drafter / "model.safetensors")
    WEIGHTS[said](weights)
    save_file(weights, drafter / "model.safetensors")
    assert said in str(refused(drafter))


def test_a_truncated_file_is_refused(drafter: Path) -> None:
    path = drafter / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert "cut short" in refused(drafter).what


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"speculators_model_type": "dspark"}, "speculators"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_dialects_are_named(drafter: Path, change: dict[str, Any], name: str) -> None:
    edit(drafter, lambda config: config.update(change))
    assert name in refused(drafter).what


def test_a_folder_that_is_no_drafter(target: Path) -> None:
    assert "DFlashDraftModel" in refused(target).why


def test_saved_drafters_open_again_and_load_in_pypi_dflash(drafter: Path, tmp_path: Path) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    hashes = {TRAINED_WITH: {"vocabulary_sha256": "v", "template_sha256": "t"}}
    again = open_drafter(
        zlab_v1.save(opened.spec, weights, tmp_path / "saved", hashes, extra_files={"README.md": b"how it was made"})
    )
    assert (again.path / "README.md").read_bytes() == b"how it was made"
    assert replace(again.spec, evidence={}) == replace(opened.spec, name="saved", evidence={})
    assert (again.text_hash, again.template_hash) == ("v", "t")
    theirs, info = DFlashDraftModel.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] | info["unexpected_keys"] | info["mismatched_keys"]
    assert (theirs.block_size, theirs.mask_token_id, tuple(theirs.target_layer_ids)) == (
        opened.spec.block,
        opened.spec.mask_id,
        opened.spec.taps,
    )
    assert theirs.config.rope_parameters["rope_theta"] == opened.spec.rope_theta
    assert all(torch.equal(value, weights[name]) for name, value in theirs.state_dict().items())


@pytest.mark.parametrize(
    "extra",
    [SLIDING, {"is_causal": True}, {"attention_bias": True}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}],
)
def test_saving_keeps_every_setting(target: Path, tmp_path: Path, extra: dict[str, Any]) -> None:
    opened = open_drafter(write_drafter(tmp_path / "d", target, **extra))
    saved = zlab_v1.save(opened.spec, {name: opened.read(name) for name in opened.tensors.shapes()}, tmp_path / "saved")
    assert replace(open_drafter(saved).spec, evidence={}) == replace(opened.spec, name="saved", evidence={})


def test_saving_twice_gives_the_same_bytes(drafter: Path, tmp_path: Path) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    first, second = (zlab_v1.save(opened.spec, weights, tmp_path / name / "saved") for name in "ab")
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}


@pytest.mark.parametrize(
    ("change", "spoil", "error"),
    [
        ({"causal": (True, False)}, {}, UsageError),
        ({"windows": (8, 16), "causal": (True, True)}, {}, UsageError),
        ({"target_layers": None}, {}, UsageError),
        ({"draft_vocab": 64}, {}, UsageError),
        ({}, {"norm.weight": torch.ones(3)}, CheckpointError),
        ({}, {"norm.weight": torch.ones(64).bfloat16()}, CheckpointError),
    ],
    ids=["mixed causality", "two windows", "no target layers", "reduced vocabulary", "wrong shape", "mixed dtypes"],
)
def test_what_the_layout_cannot_say_is_not_written(
    drafter: Path, tmp_path: Path, change: dict[str, Any], spoil: dict[str, torch.Tensor], error: type[DFlashError]
) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()} | spoil
    with pytest.raises(error):
        zlab_v1.save(replace(opened.spec, **change), weights, tmp_path / "out" / "saved")
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_an_interrupted_save_leaves_the_old_drafter_and_nothing_else(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    place = tmp_path / "out" / "saved"
    zlab_v1.save(opened.spec, weights, place)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    with pytest.raises(UsageError, match="there is a drafter"):
        zlab_v1.save(opened.spec, weights, place)

    def fail(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(json, "dumps", fail)
    with pytest.raises(KeyboardInterrupt):
        zlab_v1.save(opened.spec, {name: value + 1 for name, value in weights.items()}, place, replace=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["saved"]
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_a_swap_that_is_interrupted_half_way_keeps_the_old_drafter(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    place = zlab_v1.save(opened.spec, weights, tmp_path / "out" / "saved")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    rename, seen = Path.rename, list[Path]()

    def interrupted(self: Path, to: Path) -> Path:
        seen.append(self)
        if len(seen) == 2:  # the old one is aside, the new one not yet in its place
            raise KeyboardInterrupt
        return rename(self, to)

    monkeypatch.setattr(swap, "_exchanged", lambda *_: False)  # as where a system cannot exchange two names
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        zlab_v1.save(opened.spec, {name: value + 1 for name, value in weights.items()}, place, replace=True)
    assert len(seen) == 3
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["saved"]
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_only_a_drafter_is_ever_replaced(drafter: Path, tmp_path: Path) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("you")
    (tmp_path / "file").write_text("text")
    for name in ("letters", "file"):
        with pytest.raises(UsageError, match="no drafter"):
            zlab_v1.save(opened.spec, weights, tmp_path / name, replace=True)
    assert (tmp_path / "letters" / "dear").read_text() == "you"
    assert (tmp_path / "file").read_text() == "text"


def test_replacing_a_drafter(drafter: Path, tmp_path: Path) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    place = zlab_v1.save(opened.spec, weights, tmp_path / "out" / "saved")
    zlab_v1.save(opened.spec, {name: value + 1 for name, value in weights.items()}, place, replace=True)
    assert torch.equal(open_drafter(place).read("fc.weight"), weights["fc.weight"] + 1)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["saved"]


def test_a_failed_write_is_an_error_a_user_can_read(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_drafter(drafter)

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BuildError, match="No space left"):
        zlab_v1.save(
            opened.spec, {name: opened.read(name) for name in opened.tensors.shapes()}, tmp_path / "out" / "saved"
        )
    assert not list((tmp_path / "out").iterdir())
