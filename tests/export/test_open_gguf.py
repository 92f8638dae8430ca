"""GGUF targets against transformers' own GGUF loader, and the files that must be refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_files import write_gguf
from models import ENDOFTEXT, IM_END, write_target
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from dflash_compile.export import open_target
from dflash_compile.runtime.errors import CheckpointError

FAMILIES = ("llama", "qwen3")


@pytest.fixture(scope="module")
def dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("targets")
    return {family: write_target(root / family, family) for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_1], ids=lambda kind: kind.name)
def test_every_tensor_equals_transformers_loader(
    tmp_path: Path, dirs: dict[str, Path], family: str, kind: Kind
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", dirs[family], kind)
    config = AutoConfig.from_pretrained(
        dirs[family]
    )  # given, because transformers' loader takes no head_dim from a qwen3 file
    expected = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, config=config, dtype=torch.float32
    ).state_dict()
    target = open_target(file)
    assert target.tensors.shapes().keys() == {
        name for name in expected if not (target.spec.tied and name == "lm_head.weight")
    }
    for name in target.tensors.shapes():
        assert torch.equal(target.read(name).float(), expected[name]), name


def test_unquantised_tensors_keep_their_dtype_and_original_values(tmp_path: Path, dirs: dict[str, Path]) -> None:
    original, target = (
        open_target(dirs["llama"]),
        open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"], Kind.BF16)),
    )
    name = "model.layers.1.self_attn.q_proj.weight"
    assert target.read(name).dtype == torch.bfloat16
    assert torch.equal(target.read(name), original.read(name).bfloat16())


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0], ids=lambda kind: kind.name)
def test_vectors_are_read_whole_however_they_are_stored(tmp_path: Path, kind: Kind) -> None:
    folder = write_target(tmp_path / "target", "llama", attention_bias=True)
    original, target = open_target(folder), open_target(write_gguf(tmp_path / "tiny.gguf", folder, vectors=kind))
    for name in ("model.norm.weight", "model.layers.1.self_attn.q_proj.bias"):
        torch.testing.assert_close(target.read(name).float(), original.read(name), atol=2e-2, rtol=2e-2)
        assert torch.equal(target.tensors.rows(name, 5, 22), target.read(name)[5:22])


@pytest.mark.parametrize("family", FAMILIES)
def test_spec_and_config_equal_those_of_the_directory(tmp_path: Path, dirs: dict[str, Path], family: str) -> None:
    original, target = open_target(dirs[family]), open_target(write_gguf(tmp_path / "tiny.gguf", dirs[family]))
    for field in (
        "family",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "intermediate",
        "vocab",
        "max_positions",
        "tied",
        "rms_eps",
        "rope_theta",
        "bos_id",
        "pad_id",
    ):
        assert getattr(target.spec, field) == getattr(original.spec, field), field
    assert target.spec.eos_ids == (IM_END, ENDOFTEXT)  # the second by its text, as in llama.cpp
    assert target.text.chat_template == original.text.chat_template
    assert target.config.rope_parameters == original.config.rope_parameters


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight", "model.embed_tokens.weight"],
)
@pytest.mark.parametrize("span", [(0, 1), (3, 21), (15, 17), (7, 7)])
def test_rows_are_the_same_rows_as_of_the_whole(
    tmp_path: Path, dirs: dict[str, Path], name: str, span: tuple[int, int]
) -> None:
    target = open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"], Kind.Q8_0))
    assert torch.equal(target.tensors.rows(name, *span), target.read(name)[slice(*span)])


def test_only_the_rows_asked_for_are_decoded(
    tmp_path: Path, dirs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dflash_compile.export.gguf_format.tensors as module

    target = open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"], Kind.Q8_0))
    sizes: list[int] = []
    real = module.dequantize
    monkeypatch.setattr(module, "dequantize", lambda data, kind: sizes.append(len(data)) or real(data, kind))
    target.tensors.rows("model.layers.0.self_attn.q_proj.weight", 4, 9)
    target.tensors.rows("model.embed_tokens.weight", 100, 103)
    assert sizes == [5, 3]


def test_tokenizer_ids_equal_those_of_the_original_tokenizer(tmp_path: Path, dirs: dict[str, Path]) -> None:
    original = Tokenizer.from_file(str(dirs["llama"] / "tokenizer.json"))
    rebuilt = Tokenizer.from_str(
        open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"])).text.tokenizer_json.decode()
    )
    for text in (
        "",
        " ",
        "the quick  brown\n\n fox",
        "it's 12 x1y2 <|im_start|>user\nhi<|im_end|>",
        "naïve café 日本語 🙂\t\u00a0end ",
        "<|im_star",
    ):
        ids = rebuilt.encode(text).ids
        assert ids == original.encode(text).ids
        assert rebuilt.decode(ids, skip_special_tokens=False) == text


def test_a_directory_with_one_gguf_file_opens(tmp_path: Path, dirs: dict[str, Path]) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", dirs["qwen3"])
    target = open_target(tmp_path)
    assert target.path == file
    assert list(target.files) == [file.name]


@pytest.mark.parametrize("share", [0.001, 0.05, 0.3, 0.9, 0.9999])
def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path, dirs: dict[str, Path], share: float) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", dirs["llama"])
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match="cut short"):
        open_target(file)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"extra": {"llama.expert_count": 4}}, "expert_count"),
    ({"extra": {"llama.attention.scale": 0.5}}, "attention.scale"),
    ({"extra": {"llama.rope.dimension_count": 8}}, "rope.dimension_count"),
    ({"extra": {"llama.rope.scaling.type": "longrope"}}, "longrope"),
    ({"extra": {"llama.rope.scaling.type": "linear"}}, "rope.scaling.factor"),
    ({"extra": {"llama.vocab_size": 100}}, "vocab_size"),
    ({"extra": {"llama.attention.head_count_kv": [2, 2, 1, 2]}}, "differs from layer to layer"),
    ({"extra": {"llama.block_count": 3}}, "surplus: blk.3"),
    ({"extra": {"llama.block_count": 5}}, "missing: model.layers.4"),
    ({"extra": {"split.count": 2}}, "gguf-split"),
    ({"extra": {"split.count": "two"}}, "gguf-split"),
    ({"extra": {"llama.attention.head_count": 0}}, "attention.head_count cannot be 0"),
    ({"extra": {"llama.attention.head_count_kv": 0}}, "head_count_kv cannot be 0"),
    ({"extra": {"llama.embedding_length": "wide"}}, "embedding_length cannot be 'wide'"),
    ({"extra": {"llama.attention.layer_norm_rms_epsilon": "small"}}, "epsilon cannot be 'small'"),
    ({"extra": {"llama.rope.freq_base": 0.0}}, "rope_theta = 0.0"),
    ({"extra": {"llama.context_length": 0}}, "context_length cannot be 0"),
    ({"extra": {"tokenizer.ggml.padding_token_id": 10**6}}, "cannot build"),
    ({"extra": {"tokenizer.ggml.eos_token_id": 9999}}, "9999"),
    ({"skip": ("llama.rope.freq_base",)}, "rope.freq_base"),
    ({"skip": ("llama.attention.layer_norm_rms_epsilon",)}, "layer_norm_rms_epsilon"),
    ({"skip": ("blk.2.ffn_up.weight",)}, "model.layers.2.mlp.up_proj.weight"),
    ({"skip": ("token_embd.weight",)}, "no embedding"),
    ({"skip": ("tokenizer.ggml.pre",)}, "tokenizer.ggml.pre"),
    ({"pre": "made-up"}, "made-up"),
    ({"tokenizer_model": "llama"}, "SentencePiece"),
]


@pytest.mark.parametrize(("options", "said"), BAD, ids=[said for _, said in BAD])
def test_a_file_that_would_give_wrong_text_is_refused(
    tmp_path: Path, dirs: dict[str, Path], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"], **options))
    assert said in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rope_scaling_reaches_the_config(tmp_path: Path, dirs: dict[str, Path], kind: str) -> None:
    keys = {
        "llama.rope.scaling.type": kind,
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    rope = open_target(write_gguf(tmp_path / "tiny.gguf", dirs["llama"], extra=keys)).config.rope_parameters
    assert (rope["rope_type"], rope["factor"]) == (kind, 4.0)
    assert kind == "linear" or rope["original_max_position_embeddings"] == 128


def test_an_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "m.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"mamba[\s\S]*llama, qwen3"):
        open_target(tmp_path / "m.gguf")


def test_a_file_that_shrinks_after_opening_is_noticed(tmp_path: Path, dirs: dict[str, Path]) -> None:
    target = open_target(write_gguf(tmp_path / "tiny.gguf", dirs["qwen3"]))
    shorter = target.path.read_bytes()[:5000]
    target.path.unlink()  # a new file: cutting the old one would pull its pages from under the reader's map
    target.path.write_bytes(shorter)
    with pytest.raises(CheckpointError, match="shorter"):
        target.read("model.norm.weight")
