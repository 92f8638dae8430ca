"""Transformers directories: the same tensors, ids and settings as transformers reads, and the directories that must be
refused.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import ENDOFTEXT, IM_END, IM_START, write_target
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints.text import vocabulary_hash
from dflash_compile.runtime.errors import CheckpointError, ExitCode, UsageError

INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("targets")
    return {
        "llama": write_target(root / "llama"),
        "qwen3": write_target(root / "qwen3", "qwen3"),
        "sharded": write_target(root / "sharded", "qwen3", shard_size="100KB"),
        "bfloat16": write_target(root / "bfloat16", dtype=torch.bfloat16),
    }


@pytest.fixture
def whole(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["llama"], tmp_path / "whole"))


@pytest.fixture
def sharded(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["sharded"], tmp_path / "sharded"))


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_target(path)
    assert caught.value.where
    assert caught.value.why
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("name", ["llama", "qwen3", "sharded", "bfloat16"])
def test_tensors_equal_the_loaded_model(originals: dict[str, Path], name: str) -> None:
    target = open_target(originals[name])
    expected = AutoModelForCausalLM.from_pretrained(originals[name]).state_dict()
    assert target.tensors.shapes().keys() == {
        key for key in expected if not (target.spec.tied and key == "lm_head.weight")
    }
    for key, shape in target.tensors.shapes().items():
        assert shape == tuple(expected[key].shape)
        assert torch.equal(target.read(key), expected[key])
        assert torch.equal(target.tensors.rows(key, 3, 9), expected[key][3:9])
    assert target.spec.dtype == ("bfloat16" if name == "bfloat16" else "float32")


def test_spec_and_text(originals: dict[str, Path]) -> None:
    target = open_target(originals["qwen3"])
    spec = target.spec
    assert (spec.family, spec.layers, spec.hidden, spec.heads, spec.kv_heads, spec.head_dim, spec.vocab) == (
        "qwen3",
        4,
        64,
        4,
        2,
        16,
        384,
    )
    assert (spec.tied, spec.bos_id, spec.pad_id, spec.max_positions) == (True, IM_START, ENDOFTEXT, 512)
    assert spec.eos_ids == (IM_END, ENDOFTEXT)  # the config names one, the generation defaults both
    assert target.text.chat_template is not None
    assert "add_generation_prompt" in target.text.chat_template
    assert (target.text.bos_token, target.text.eos_token) == ("<|im_start|>", "<|im_end|>")


def test_the_end_of_turn_token_ends_generation_though_no_config_says_so(whole: Path) -> None:
    (whole / "generation_config.json").unlink()
    edit(whole / "config.json", lambda config: config.update(eos_token_id=ENDOFTEXT))
    assert open_target(whole).spec.eos_ids == (ENDOFTEXT, IM_END)


def test_tokenizer_ids_equal_transformers(originals: dict[str, Path]) -> None:
    ours = Tokenizer.from_str(open_target(originals["llama"]).text.tokenizer_json.decode())
    theirs = AutoTokenizer.from_pretrained(originals["llama"])
    texts = ("", " ", "the quick  brown\n\n fox", "it's 12 x1y2 <|im_start|>user\nhi<|im_end|>")
    for text in (*texts, "naïve café 日本語 🙂\t\u00a0end "):
        assert ours.encode(text).ids == theirs(text).input_ids


def test_every_file_read_is_hashed(originals: dict[str, Path]) -> None:
    target = open_target(originals["sharded"])
    read = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in originals["sharded"].iterdir()}
    assert dict(target.files) == read


def test_a_stored_copy_of_a_tied_head_is_accepted_and_a_different_one_refused(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(originals["qwen3"], tmp_path / "tied"))
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors")
    assert "lm_head.weight" not in open_target(folder).tensors.shapes()
    weights["lm_head.weight"][200, 5] += 1
    save_file(weights, folder / "model.safetensors")
    assert "tie_word_embeddings" in refused(folder).where


def test_rotary_buffers_of_old_checkpoints_are_left_out(whole: Path) -> None:
    weights = load_file(whole / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)
    save_file(weights, whole / "model.safetensors")
    assert not any("inv_freq" in name for name in open_target(whole).tensors.shapes())


@pytest.mark.parametrize("keep", [0, 4, 100, -1, -5000])
def test_a_truncated_file_is_refused(whole: Path, keep: int) -> None:
    data = (whole / "model.safetensors").read_bytes()
    (whole / "model.safetensors").write_bytes(data[:keep])
    assert "cut short" in refused(whole).what


def test_a_truncated_shard_is_refused(sharded: Path) -> None:
    shard = max(sharded.glob("model-0*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert shard.name in refused(sharded).what


def test_a_missing_shard_is_refused(sharded: Path) -> None:
    shard = min(sharded.glob("model-0*.safetensors"))
    shard.unlink()
    assert f"{shard.name} is missing" in refused(sharded).what


def test_shards_without_their_index_are_refused(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert INDEX in refused(sharded).what


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["weight_map"].update(ghost=next(iter(index["weight_map"].values()))),
        lambda index: index["weight_map"].pop("model.norm.weight"),
    ],
    ids=["lists a tensor no shard holds", "leaves a tensor out"],
)
def test_an_index_that_disagrees_with_its_shards_is_refused(
    sharded: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit(sharded / INDEX, change)
    assert "disagree" in refused(sharded).what


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "weights.bin"])
def test_an_index_that_points_elsewhere_is_refused(sharded: Path, file: str) -> None:
    edit(sharded / INDEX, lambda index: index["weight_map"].update({"model.norm.weight": file}))
    assert file in refused(sharded).what


def test_an_index_that_names_no_possible_file_is_refused(sharded: Path) -> None:
    edit(
        sharded / INDEX, lambda index: index.update(weight_map=dict.fromkeys(index["weight_map"], "\ud800.safetensors"))
    )
    assert "damaged" in refused(sharded).what


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pth", "consolidated.00.pt"])
def test_pickles_are_refused_unopened(whole: Path, name: str) -> None:
    (whole / "model.safetensors").rename(whole / name)
    error = refused(whole)
    assert "pickle" in error.what
    assert "code" in error.why


def test_no_weights_at_all(whole: Path) -> None:
    (whole / "model.safetensors").unlink()
    assert "no weights" in refused(whole).what


CHANGED: dict[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "1 missing: model.layers.2.mlp.up_proj.weight": lambda weights: weights.pop("model.layers.2.mlp.up_proj.weight"),
    "1 missing: lm_head.weight": lambda weights: weights.pop("lm_head.weight"),
    "1 surplus: model.layers.9.extra": lambda weights: weights.update({"model.layers.9.extra": torch.ones(2)}),
    "model.norm.weight is [65], not [64]": lambda weights: weights.update({"model.norm.weight": torch.ones(65)}),
    "I32": lambda weights: weights.update({"model.norm.weight": torch.ones(64, dtype=torch.int32)}),
}


@pytest.mark.parametrize("said", CHANGED)
def test_weights_that_are_not_the_models_are_refused(whole: Path, said: str) -> None:
    weights = load_file(whole / "model.safetensors")
    CHANGED[said](weights)
    save_file(weights, whole / "model.safetensors")
    assert said in str(refused(whole))


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_parameters",
    ],
)
def test_a_missing_key_is_refused_not_defaulted(whole: Path, key: str) -> None:
    edit(whole / "config.json", lambda config: config.pop(key))
    assert ("rope_theta" if key == "rope_parameters" else key) in refused(whole).what


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}, "auto_map"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ({"model_type": "mamba"}, "known families"),
        ({"num_attention_heads": "four"}, "does not accept"),
        ({"num_hidden_layers": 3}, "surplus"),
        ({"intermediate_size": 96}, "not [96, 64]"),
        ({"vocab_size": 0}, "vocab_size = 0"),
        ({"intermediate_size": -1}, "intermediate_size = -1"),
        ({"num_key_value_heads": 0}, "num_key_value_heads = 0"),
        ({"head_dim": -16}, "head_dim = -16"),
        ({"max_position_embeddings": -1}, "max_position_embeddings = -1"),
        ({"num_hidden_layers": 10**12}, "num_hidden_layers cannot be 1000000000000"),
        ({"pad_token_id": 10**9}, "cannot build"),
        ({"hidden_act": "softmax3"}, "cannot build"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = inf"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": float("nan")}}, "rope_theta = nan"),
        ({"rope_parameters": {"rope_type": "no such", "rope_theta": 1e4}}, "no such"),
        ({"eos_token_id": 10**9}, "end token 1000000000"),
        ({"bos_token_id": -7}, "beginning token -7"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_configuration_is_refused(whole: Path, change: dict[str, Any], said: str) -> None:
    edit(whole / "config.json", lambda config: config.update(change))
    assert said in str(refused(whole))


def test_code_beside_a_checkpoint_is_never_run(whole: Path) -> None:
    (whole / "evil.py").write_text(f"open({str(whole / 'ran')!r}, 'w')\n")
    edit(
        whole / "config.json",
        lambda config: config.update(auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}),
    )
    refused(whole)
    assert not (whole / "ran").exists()


@pytest.mark.parametrize(
    "change", [{"architectures": 7}, {"architectures": "LlamaForCausalLM"}, {"dtype": 3}, {"eos_token_id": -1}], ids=str
)
def test_values_that_decide_nothing_may_be_anything(
    originals: dict[str, Path], whole: Path, change: dict[str, Any]
) -> None:
    edit(whole / "config.json", lambda config: config.update(change))
    opened = open_target(whole)
    assert dict(opened.tensors.shapes()) == dict(open_target(originals["llama"]).tensors.shapes())
    assert set(opened.spec.eos_ids) == {IM_END, ENDOFTEXT}


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_json_nested_beyond_reason_is_refused(whole: Path, name: str) -> None:
    (whole / name).write_text("[" * 100_000 + "]" * 100_000)
    assert name in refused(whole).what


def test_a_chat_template_that_is_no_text_is_refused(whole: Path) -> None:
    (whole / "chat_template.jinja").write_bytes(b"\xff\xfe")
    assert "chat_template.jinja" in refused(whole).what


@pytest.mark.parametrize("content", ["{", "[]", "\x00"])
def test_a_damaged_config_is_refused(whole: Path, content: str) -> None:
    (whole / "config.json").write_text(content)
    assert "config.json" in refused(whole).what


def test_a_missing_tokenizer_says_how_to_make_one(whole: Path) -> None:
    (whole / "tokenizer.json").unlink()
    assert "save_pretrained" in refused(whole).fix


def test_a_damaged_tokenizer_is_refused(whole: Path) -> None:
    (whole / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refused(whole).what


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(whole: Path) -> None:
    tokenizer = Tokenizer.from_file(str(whole / "tokenizer.json"))
    tokenizer.add_tokens(["one_token_too_many"])
    tokenizer.save(str(whole / "tokenizer.json"))
    assert "one_token_too_many" in refused(whole).what


def test_a_special_token_the_tokenizer_lacks_is_refused(whole: Path) -> None:
    edit(whole / "tokenizer_config.json", lambda settings: settings.update(eos_token={"content": "<|nowhere|>"}))
    assert "<|nowhere|>" in refused(whole).what


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "three"}], "three"),
        (None, None),
    ],
    ids=["string", "named list", "none"],
)
def test_chat_template_forms(whole: Path, templates: object, expected: str | None) -> None:
    (whole / "chat_template.jinja").unlink()
    edit(whole / "tokenizer_config.json", lambda settings: settings.update(chat_template=templates))
    assert open_target(whole).text.chat_template == expected


def test_named_templates_without_a_default_are_refused(whole: Path) -> None:
    (whole / "chat_template.jinja").unlink()
    edit(
        whole / "tokenizer_config.json",
        lambda settings: settings.update(chat_template=[{"name": "rag", "template": "x"}]),
    )
    assert "rag" in refused(whole).why


def test_rows_that_are_not_there(whole: Path) -> None:
    tensors = open_target(whole).tensors
    for name, start, stop in (
        ("nowhere", 0, 1),
        ("model.norm.weight", 0, 65),
        ("model.norm.weight", 5, 4),
        ("model.norm.weight", -1, 2),
    ):
        with pytest.raises(CheckpointError):
            tensors.rows(name, start, stop)


def test_something_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert "gguf" in refused(tmp_path).why
    (tmp_path / "notes.txt").write_text("hello")
    assert "transformers_dir" in refused(tmp_path / "notes.txt").why


@pytest.mark.parametrize("name", ["nowhere", "~no-such-user/model", "a\0b", "a\udcff"])
def test_nothing_at_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="smollm2-135m") as caught:
        open_target(name)
    assert caught.value.exit_code == ExitCode.USAGE


def test_vocabulary_hash_sees_ids_and_not_spelling_of_the_file(whole: Path) -> None:
    data = (whole / "tokenizer.json").read_bytes()
    value = json.loads(data)
    assert vocabulary_hash(json.dumps(value, indent=4).encode()) == vocabulary_hash(data)
    vocab = value["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    assert vocabulary_hash(json.dumps(value).encode()) != vocabulary_hash(data)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_weights_do_not_stay_mapped_once_read(whole: Path) -> None:
    target = open_target(whole)
    for name in target.tensors.shapes():
        target.read(name)
    assert str(whole) not in Path("/proc/self/maps").read_text()


def test_a_file_that_shrinks_after_opening_is_noticed(whole: Path) -> None:
    target = open_target(whole)
    (whole / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(CheckpointError):
        target.read("model.norm.weight")
