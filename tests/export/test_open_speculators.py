"""Drafters in the speculators layout: every key and tensor as version 0.9.0 of the package writes them, and nothing
guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import IM_END, MASK, VOCAB, write_speculators, write_target
from safetensors.torch import load_file, save_file

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.checkpoints.drafter_folder import TRAINED_WITH
from dflash_compile.export.dflash.vocabulary import DraftVocabulary
from dflash_compile.export.drafters import speculators
from dflash_compile.export.spec import DrafterSpec
from dflash_compile.runtime.errors import BuildError, CheckpointError, DFlashError, PairingError, UsageError

IDS = (IM_END, *range(40, 300, 4))
NESTED = "transformer_layer_config"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


@pytest.fixture
def drafter(target: Path, tmp_path: Path) -> Path:
    return write_speculators(tmp_path / "drafter", target, IDS, taps=(0, 2))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "config.json"
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def spoil(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_drafter(folder)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix
    return caught.value


def test_spec_vocabulary_tensors_and_files(drafter: Path) -> None:
    opened = open_drafter(drafter)
    spec = opened.spec
    assert (spec.dialect, spec.layers, spec.hidden, spec.block, spec.mask_id, spec.vocab, spec.draft_vocab) == (
        "speculators",
        2,
        64,
        8,
        MASK,
        VOCAB,
        len(IDS),
    )
    assert spec.taps == (0, 2), "the layout counts from the embedding's output"
    assert (spec.windows, spec.causal, spec.rope_scaling, spec.dtype, spec.target_layers) == (
        (None, None),
        (False, False),
        None,
        "float32",
        None,
    )
    assert opened.vocabulary == DraftVocabulary(IDS, VOCAB)
    stored = load_file(drafter / "model.safetensors")
    assert opened.tensors.shapes().keys() == stored.keys() - {"d2t", "t2d"}
    assert all(torch.equal(opened.read(name), stored[name]) for name in opened.tensors.shapes())
    assert set(opened.files) == {"config.json", "model.safetensors"}


def test_every_field_says_where_it_came_from(drafter: Path) -> None:
    edit(drafter, lambda config: config.update(num_target_layers=4))
    evidence = open_drafter(drafter).spec.evidence
    assert {field.name for field in fields(DrafterSpec)} - {"evidence"} - evidence.keys() == set()
    assert evidence["taps"] == "aux_hidden_state_layer_ids"
    assert evidence["hidden"] == f"{NESTED}.hidden_size"


def test_a_draft_from_the_anchor_is_a_row_shorter_than_the_block_it_fills(drafter: Path, tmp_path: Path) -> None:
    edit(drafter, lambda config: config.update(sample_from_anchor=True))
    opened = open_drafter(drafter)
    assert (opened.spec.block, opened.spec.sample_from_anchor) == (9, True)
    assert opened.spec.evidence["sample_from_anchor"] == "sample_from_anchor"
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    saved = speculators.save(opened.spec, weights, opened.vocabulary, tmp_path / "saved")
    written = json.loads((saved / "config.json").read_text())
    assert (written["block_size"], written["sample_from_anchor"]) == (8, True)
    assert written["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 8
    assert replace(open_drafter(saved).spec, evidence={}) == replace(opened.spec, name="saved", evidence={})


def test_a_whole_vocabulary_needs_no_head_and_no_maps(target: Path, tmp_path: Path) -> None:
    opened = open_drafter(write_speculators(tmp_path / "d", target, range(VOCAB)))
    assert (opened.spec.draft_vocab, opened.vocabulary) == (None, None)
    assert "lm_head.weight" not in opened.tensors.shapes()


def test_copies_of_the_targets_tensors_are_not_used(drafter: Path, target: Path, tmp_path: Path) -> None:
    copies = {
        "embed_tokens.weight": torch.zeros(VOCAB, 64),
        "verifier_norm.weight": torch.zeros(64),
        "verifier_lm_head.weight": torch.zeros(len(IDS), 64),
    }
    spoil(drafter, lambda weights: weights.update(copies))
    assert not copies.keys() & open_drafter(drafter).tensors.shapes().keys()
    whole = write_speculators(tmp_path / "whole", target, range(VOCAB))
    spoil(whole, lambda weights: weights.update({"lm_head.weight": torch.zeros(VOCAB, 64)}))
    assert "lm_head.weight" not in open_drafter(whole).tensors.shapes(), "the package takes it from the target"


def test_values_left_out_are_the_defaults_of_the_configuration_class(drafter: Path) -> None:
    edit(
        drafter,
        lambda config: [
            config[NESTED].pop(key) for key in ("rms_norm_eps", "attention_bias", "layer_types", "hidden_act")
        ],
    )
    spec = open_drafter(drafter).spec
    assert (spec.rms_eps, spec.attention_bias) == (1e-6, False)
    assert "left out" in spec.evidence["rms_eps"]


def test_rope_scaling(drafter: Path) -> None:
    edit(
        drafter,
        lambda config: config[NESTED].update(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}),
    )
    spec = open_drafter(drafter).spec
    assert (spec.rope_theta, spec.rope_scaling) == (1e6, {"rope_type": "linear", "factor": 2.0})


def test_a_head_of_the_targets_rows(target: Path, tmp_path: Path) -> None:
    folder = write_speculators(tmp_path / "d", target, IDS, own_head=False)
    assert "lm_head.weight" not in open_drafter(folder).tensors.shapes()
    spoil(folder, lambda weights: weights.update({"lm_head.weight": torch.ones(len(IDS), 64)}))
    assert "lm_head_from_target is set but" in refused(folder).what
    edit(folder, lambda config: config.update(lm_head_from_target="yes"))
    assert "lm_head_from_target" in refused(folder).what


TOP = ("block_size", "mask_token_id", "aux_hidden_state_layer_ids", "draft_vocab_size", NESTED)


@pytest.mark.parametrize("key", TOP)
@pytest.mark.parametrize("null", [True, False])
def test_a_missing_key_is_refused(drafter: Path, key: str, null: bool) -> None:
    edit(drafter, lambda config: config.update({key: None}) if null else config.pop(key))
    assert f"lacks {key}" in refused(drafter).what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample_from_anchor": "false"}, "sample_from_anchor"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, "embedding's output"),
        ({"aux_hidden_state_layer_ids": 2}, "aux_hidden_state_layer_ids"),
        ({"aux_hidden_state_layer_ids": [1, True]}, "aux_hidden_state_layer_ids"),
        ({"draft_vocab_size": VOCAB + 1}, "larger than the target's"),
        ({"draft_vocab_size": 0}, "draft_vocab_size"),
        ({"draft_vocab_size": len(IDS) - 1}, f"d2t is [{len(IDS)}], not [{len(IDS) - 1}]"),
        ({"draft_vocab_size": VOCAB}, "2 surplus: d2t, t2d"),
        ({"mask_token_id": -1}, "mask_token_id"),
        ({"target_hidden_size": 128}, "the target is 128 wide"),
        ({"speculators_config": {"algorithm": "eagle3"}}, "not DFlash"),
        ({"output_multiplier": 2.0}, "unknown keys: output_multiplier"),
        ({"markov_rank": 4, "confidence_head": True}, "unknown keys: confidence_head, markov_rank"),
        ({NESTED: 3}, NESTED),
        ({NESTED: {"model_type": "no such model"}}, NESTED),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_malformed_or_unsupported_key_is_refused(drafter: Path, change: dict[str, Any], said: str) -> None:
    edit(drafter, lambda config: config.update(change))
    assert said in str(refused(drafter))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        (
            {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": False, "sliding_window": 32},
            "there is no window",
        ),
        (
            {
                "layer_types": ["sliding_attention", "chunked_attention"],
                "use_sliding_window": True,
                "sliding_window": 32,
            },
            "chunked_attention",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}, "mrope_section"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("inf")}}, "rope_theta"),
        ({"num_attention_heads": 8}, "of the wrong shape"),
        ({"num_hidden_layers": 1, "layer_types": ["full_attention"]}, "11 surplus"),
        ({"attention_bias": True}, "8 missing"),
        ({"vocab_size": VOCAB + 8}, f"t2d is [{VOCAB}], not [{VOCAB + 8}]"),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_nested_value_that_does_not_fit_is_refused(drafter: Path, change: dict[str, Any], said: str) -> None:
    edit(drafter, lambda config: config[NESTED].update(change))
    assert said in str(refused(drafter))


def test_unknown_keys_that_are_off_are_no_fault(drafter: Path) -> None:
    edit(drafter, lambda config: config.update(some_option=None, other_option=False))
    open_drafter(drafter)


WEIGHTS: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "1 missing: lm_head.weight": lambda weights: weights.pop("lm_head.weight"),
    "1 missing: d2t": lambda weights: weights.pop("d2t"),
    "1 missing: t2d": lambda weights: weights.pop("t2d"),
    "1 surplus: markov.weight": lambda weights: weights.update({"markov.weight": torch.ones(2, 2)}),
    f"lm_head.weight is [{len(IDS) + 1}, 64]": lambda weights: weights.update(
        {"lm_head.weight": torch.ones(len(IDS) + 1, 64)}
    ),
    "tensor d2t is stored as float32": lambda weights: weights.update(d2t=weights["d2t"].float()),
    "tensor t2d is stored as int64": lambda weights: weights.update(t2d=weights["t2d"].long()),
    "tensor norm.weight is stored as int64": lambda weights: weights.update(
        {"norm.weight": torch.ones(64, dtype=torch.int64)}
    ),
    "twice: 40": lambda weights: weights["d2t"].__setitem__(2, 38),
    "name different tokens": lambda weights: weights.update(t2d=weights["t2d"].roll(1)),
    "outside the target's vocabulary": lambda weights: weights["d2t"].__setitem__(-1, VOCAB),
}


@pytest.mark.parametrize("said", WEIGHTS)
def test_tensors_must_be_exactly_those_of_the_layout(drafter: Path, said: str) -> None:
    spoil(drafter, WEIGHTS[said])
    assert said in str(refused(drafter))


def test_token_ids_where_differences_belong_are_refused(drafter: Path) -> None:
    """`d2t` holds id - row; a writer that stored ids, or a reader that took them for such, would propose other
    tokens.
    """
    spoil(drafter, lambda weights: weights.update(d2t=weights["d2t"] + torch.arange(len(IDS))))
    assert re.search("name different tokens|outside the target's vocabulary", str(refused(drafter)))


@pytest.fixture(scope="module")
def checkpoint(target: Path) -> TargetCheckpoint:
    return open_target(target)


def test_it_pairs_with_its_target(drafter: Path, checkpoint: TargetCheckpoint) -> None:
    assert not pair(checkpoint, open_drafter(drafter)).warnings


@pytest.mark.parametrize(
    ("ids", "said"), [((IM_END, MASK, 9), "its mask token"), (range(20, 60), "none of the target's end tokens")]
)
def test_a_vocabulary_that_costs_acceptance_is_remarked(
    target: Path, checkpoint: TargetCheckpoint, tmp_path: Path, ids: tuple[int, ...], said: str
) -> None:
    opened = open_drafter(write_speculators(tmp_path / "d", target, ids))
    assert any(said in warning for warning in pair(checkpoint, opened).warnings)


def test_pairing_finds_the_wrong_target(drafter: Path, checkpoint: TargetCheckpoint) -> None:
    edit(drafter, lambda config: config.update(aux_hidden_state_layer_ids=[1, 5]))
    with pytest.raises(PairingError, match="not layers of the target"):
        pair(checkpoint, open_drafter(drafter))
    edit(drafter, lambda config: config.update(aux_hidden_state_layer_ids=[1, 3], num_target_layers=9))
    with pytest.raises(PairingError, match="9 layers"):
        pair(checkpoint, open_drafter(drafter))


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32, "use_sliding_window": True}


@pytest.mark.parametrize("both_ways", [True, False])
def test_sliding_layers_look_back_from_the_anchor(target: Path, tmp_path: Path, both_ways: bool) -> None:
    folder = write_speculators(tmp_path / "d", target, IDS, **SLIDING)
    edit(folder, lambda config: config.update(sliding_window_non_causal=both_ways))
    spec = open_drafter(folder).spec
    assert (spec.windows, spec.windows_from_anchor, spec.causal) == ((32, None), True, (not both_ways, False))
    assert spec.evidence["causal"] == "sliding_window_non_causal"


@pytest.mark.parametrize("own_head", [True, False])
@pytest.mark.parametrize("extra", [{}, {"attention_bias": True}, {"rms_norm_eps": 1e-5}, SLIDING], ids=str)
def test_saved_drafters_open_again(target: Path, tmp_path: Path, own_head: bool, extra: dict[str, Any]) -> None:
    opened = open_drafter(write_speculators(tmp_path / "d", target, IDS, own_head=own_head, **extra))
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    spec = replace(opened.spec, target_layers=4)
    hashes = {TRAINED_WITH: {"vocabulary_sha256": "v", "template_sha256": "t"}}
    again = open_drafter(
        speculators.save(
            spec, weights, opened.vocabulary, tmp_path / "saved", hashes, extra_files={"README.md": b"made so"}
        )
    )
    assert replace(again.spec, evidence={}) == replace(spec, name="saved", evidence={})
    assert (again.vocabulary, again.text_hash, again.template_hash) == (opened.vocabulary, "v", "t")
    assert (again.path / "README.md").read_bytes() == b"made so"
    assert again.tensors.shapes() == opened.tensors.shapes()
    assert all(torch.equal(again.read(name), value) for name, value in weights.items())
    assert ("lm_head_from_target" in json.loads((again.path / "config.json").read_text())) is not own_head


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"windows": (8, None)}, UsageError),
        ({"causal": (True, True)}, UsageError),
        ({"draft_vocab": None}, UsageError),
        ({"vocab": VOCAB + 1}, UsageError),
        ({"dtype": "bfloat16"}, CheckpointError),
        ({"layers": 1}, CheckpointError),
    ],
    ids=str,
)
def test_what_the_layout_cannot_say_is_not_written(
    drafter: Path, tmp_path: Path, change: dict[str, Any], error: type[DFlashError]
) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}
    with pytest.raises(error):
        speculators.save(replace(opened.spec, **change), weights, opened.vocabulary, tmp_path / "out" / "saved")
    assert not (tmp_path / "out").exists()


def test_a_failed_write_leaves_nothing(drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = open_drafter(drafter)
    weights = {name: opened.read(name) for name in opened.tensors.shapes()}

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(BuildError, match="No space left"):
        speculators.save(opened.spec, weights, opened.vocabulary, tmp_path / "out" / "saved")
    assert not list((tmp_path / "out").iterdir())
