"""The contract between target and drafter: every clause broken once, and only that clause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import ENDOFTEXT, IM_END, IM_START, MASK, write_drafter, write_target
from safetensors.torch import load_file, save_file

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.checkpoints.text import template_hash, vocabulary_hash
from dflash_compile.runtime.errors import ExitCode, PairingError


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("targets")
    return {
        "llama": write_target(root / "llama"),
        "deep": write_target(root / "deep", num_hidden_layers=5),
        "wide": write_target(root / "wide", hidden_size=96),
        "wordy": write_target(root / "wordy", vocab_size=400),
        "no pad": write_target(root / "no_pad", pad_token_id=None),
    }


def refused(target: Path, drafter: Path, context: int | None = None) -> PairingError:
    with pytest.raises(PairingError) as caught:
        pair(open_target(target), open_drafter(drafter), context)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix
    assert caught.value.exit_code == ExitCode.INCOMPATIBLE
    return caught.value


def test_a_good_pair(targets: dict[str, Path], tmp_path: Path) -> None:
    target, drafter = (
        open_target(targets["llama"]),
        open_drafter(write_drafter(tmp_path / "d", targets["llama"], taps=(0, 1, 2))),
    )
    pairing = pair(target, drafter)
    assert (pairing.target, pairing.drafter) == (target.spec, drafter.spec)
    assert (pairing.context, pairing.taps_width, pairing.warnings, pairing.template_sha256) == (512, 192, (), None)
    assert pair(target, drafter, 9).context == 9


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"taps": (0, 4)}, "not layers of the target"),
        ({"taps": (1, 1)}, "twice"),
        ({"mask_id": 384}, "no token"),
        ({"mask_id": ENDOFTEXT}, "padding"),
        ({"mask_id": IM_START}, "beginning"),
        ({"mask_id": IM_END}, "end token"),
        ({"block": 1}, "block of 1"),
        ({"block": 65}, "block of 65"),
        ({"num_target_layers": 36}, "36 layers"),
        ({"vocab_size": 380}, "vocabulary has 380"),
        ({"hidden_size": 32}, "32 wide"),
        ({"head_dim": 15}, "15 wide"),
        ({"num_attention_heads": 3}, "3 query heads"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_broken_clause_is_named(targets: dict[str, Path], tmp_path: Path, options: dict[str, Any], said: str) -> None:
    assert said in refused(targets["llama"], write_drafter(tmp_path / "d", targets["llama"], **options)).what


def test_a_drafter_of_fewer_positions_than_its_target_is_noted(targets: dict[str, Path], tmp_path: Path) -> None:
    target = open_target(targets["llama"])
    drafter = open_drafter(write_drafter(tmp_path / "d", targets["llama"], max_position_embeddings=64))
    pairing = pair(target, drafter)
    assert pairing.context == 64
    assert ["made for 64 positions" in warning for warning in pairing.warnings] == [True]
    assert pair(target, drafter, 40).warnings == ()


def test_the_last_layer_can_be_tapped_behind_the_final_norm(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = open_drafter(write_drafter(tmp_path / "d", targets["llama"], taps=(0, 3)))
    assert ["final norm" in warning for warning in pair(open_target(targets["llama"]), drafter).warnings] == [True]


@pytest.mark.parametrize(
    ("defaults", "noted"),
    [
        ({"repetition_penalty": 1.3}, "repetition_penalty = 1.3"),
        ({"no_repeat_ngram_size": 3, "num_beams": 4}, "no_repeat_ngram_size = 3, num_beams = 4"),
        ({"repetition_penalty": 1.0, "temperature": 0.6, "do_sample": True, "max_new_tokens": 9}, None),
    ],
)
def test_generation_defaults_that_change_greedy_text_are_noted(
    tmp_path: Path, defaults: dict[str, Any], noted: str | None
) -> None:
    folder = write_target(tmp_path / "t")
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    pairing = pair(open_target(folder), open_drafter(write_drafter(tmp_path / "d", folder)))
    assert [noted in warning for warning in pairing.warnings if noted] == [True] * bool(noted)
    assert len(pairing.warnings) == bool(noted)


@pytest.mark.parametrize(
    ("other", "said"),
    [("deep", "trained for a target of 4 layers"), ("wide", "64 wide"), ("wordy", "vocabulary has 384")],
)
def test_a_drafter_for_another_target(targets: dict[str, Path], tmp_path: Path, other: str, said: str) -> None:
    assert said in refused(targets[other], write_drafter(tmp_path / "d", targets["llama"])).what


def test_the_tokenizers_padding_token_counts_where_the_config_names_none(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    (folder := targets["no pad"]).joinpath("generation_config.json").unlink()
    assert open_target(folder).spec.pad_id == ENDOFTEXT
    assert "padding" in refused(folder, write_drafter(tmp_path / "d", folder, mask_id=ENDOFTEXT)).what


@pytest.mark.parametrize("taps", [(0,), (0, 1, 2)])
def test_taps_that_do_not_fill_fc(targets: dict[str, Path], tmp_path: Path, taps: tuple[int, ...]) -> None:
    drafter = write_drafter(tmp_path / "d", targets["llama"], taps=(0, 1))
    config = json.loads((drafter / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = list(taps)
    (drafter / "config.json").write_text(json.dumps(config))
    error = refused(targets["llama"], drafter)
    assert f"128 columns, not {64 * len(taps)}" in error.what
    assert "fc.weight" in error.where


def test_where_names_the_key_the_value_came_from(targets: dict[str, Path], tmp_path: Path) -> None:
    assert refused(targets["llama"], write_drafter(tmp_path / "d", targets["llama"], taps=(0, 9))).where.endswith(
        "dflash_config.target_layer_ids"
    )


@pytest.mark.parametrize(
    ("context", "said"), [(513, "too long"), (8, "too short"), (0, "too short"), (-1, "too short")]
)
def test_a_context_neither_model_has(targets: dict[str, Path], tmp_path: Path, context: int, said: str) -> None:
    assert said in refused(targets["llama"], write_drafter(tmp_path / "d", targets["llama"]), context).what


def test_the_drafters_positions_limit_the_context_too(targets: dict[str, Path], tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "d", targets["llama"], max_position_embeddings=128)
    assert pair(open_target(targets["llama"]), open_drafter(drafter)).context == 128
    assert "at most 128" in refused(targets["llama"], drafter, 200).fix


def test_float16_weights_another_rope_base_and_unsorted_taps_are_remarked_on(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = write_drafter(tmp_path / "d", targets["llama"], taps=(2, 0), rope_theta=5e5)
    weights = load_file(drafter / "model.safetensors")
    save_file({name: value.half() for name, value in weights.items()}, drafter / "model.safetensors")
    warnings = pair(open_target(targets["llama"]), open_drafter(drafter)).warnings
    assert len(warnings) == 3
    assert all(any(word in warning for warning in warnings) for word in ("rising order", "RoPE base", "float16"))


def _trained_with(folder: Path, **hashes: str | None) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"trained_with": hashes}))
    return folder


def test_recorded_hashes_that_match(targets: dict[str, Path], tmp_path: Path) -> None:
    target = open_target(targets["llama"])
    vocabulary, template = vocabulary_hash(target.text.tokenizer_json), template_hash(target.text.chat_template)
    drafter = _trained_with(
        write_drafter(tmp_path / "d", targets["llama"]), vocabulary_sha256=vocabulary, template_sha256=template
    )
    pairing = pair(target, open_drafter(drafter))
    assert (pairing.warnings, pairing.template_sha256) == ((), template)


def test_another_tokenizer_is_refused_and_another_template_remarked_on(
    targets: dict[str, Path], tmp_path: Path
) -> None:
    drafter = write_drafter(tmp_path / "d", targets["llama"])
    assert "another tokenizer" in refused(targets["llama"], _trained_with(drafter, vocabulary_sha256="0" * 64)).what
    (warning,) = pair(
        open_target(targets["llama"]), open_drafter(_trained_with(drafter, template_sha256="0" * 64))
    ).warnings
    assert "chat template" in warning


def test_pairing_reads_no_weights(targets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_compile.export.checkpoints.safetensors_source import SafetensorsSource

    def rows(*args: object) -> torch.Tensor:
        raise AssertionError("read a weight")

    monkeypatch.setattr(SafetensorsSource, "rows", rows)
    assert pair(
        open_target(targets["llama"]), open_drafter(write_drafter(tmp_path / "d", targets["llama"], mask_id=MASK))
    ).context
