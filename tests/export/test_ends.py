"""What ends an answer: what the files name, as in transformers, and what llama.cpp takes a GGUF file to mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from gguf_files import write_gguf
from models import ENDOFTEXT, IM_END, IM_START, MASK, SPECIAL, write_target

from dflash_compile.export import open_target
from dflash_compile.export.gguf_format.ends import end_tokens
from dflash_compile.export.gguf_format.reading import GgufFile
from dflash_compile.runtime.errors import CheckpointError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def write(
    target: Path, config: dict[str, Any], generation: dict[str, Any] | None, end_of_turn: int | None = None
) -> None:
    """Special ids in config.json and generation_config.json as given here, and none else."""
    kept = {
        key: value
        for key, value in json.loads((target / "config.json").read_text()).items()
        if key not in ("bos_token_id", "eos_token_id", "pad_token_id")
    }
    (target / "config.json").write_text(json.dumps(kept | config))
    (target / "generation_config.json").unlink()
    if generation is not None:
        (target / "generation_config.json").write_text(json.dumps(generation))
    turn = {} if end_of_turn is None else {"eos_token": SPECIAL[end_of_turn]}
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | turn))


@pytest.mark.parametrize(
    ("config", "generation", "turn", "ends"),
    [
        # LlamaConfig has 1 and 2 where a file has nothing.
        ({}, {"eos_token_id": MASK}, None, (MASK,)),
        ({}, None, MASK, (MASK,)),
        ({}, None, None, ()),
        ({"eos_token_id": IM_START}, {"eos_token_id": [MASK, ENDOFTEXT]}, None, (MASK, ENDOFTEXT)),
        ({"eos_token_id": IM_START}, {"eos_token_id": MASK}, IM_END, (MASK, IM_END)),
        ({"eos_token_id": [IM_START, MASK]}, {"repetition_penalty": 1.0}, None, (IM_START, MASK)),
        ({"eos_token_id": IM_START}, None, None, (IM_START,)),
    ],
)
def test_what_the_files_name_ends_an_answer(
    target: Path, config: dict[str, Any], generation: dict[str, Any] | None, turn: int | None, ends: tuple[int, ...]
) -> None:
    write(target, config, generation, turn)
    spec = open_target(target).spec
    assert (spec.eos_ids, spec.bos_id, spec.pad_id) == (ends, None, None)


def test_the_end_of_turn_of_a_gguf_file_is_an_end_as_well(tmp_path: Path, target: Path) -> None:
    file = write_gguf(
        tmp_path / "tiny.gguf",
        target,
        extra={"tokenizer.ggml.eos_token_id": ENDOFTEXT, "tokenizer.ggml.eom_token_id": MASK},
    )
    assert open_target(file).spec.eos_ids == (ENDOFTEXT, MASK, IM_END)


class Metadata:
    """As much of a GGUF file as names ends."""

    def __init__(self, **ids: int) -> None:
        self.metadata = {f"tokenizer.ggml.{key}": value for key, value in ids.items()}

    def fault(self, key: str, what: str, why: str, fix: str) -> CheckpointError:
        return CheckpointError(what, where=key, why=why, fix=fix)


@pytest.mark.parametrize(
    ("tokens", "ids", "ends"),
    [
        ("a <|eot_id|> <|eom_id|> <|end_of_text|>", {"eos_token_id": 1}, [1, 2, 3]),
        ("<|start|> <|end|> <|return|> <|call|>", {"eos_token_id": 2}, [2, 3]),
        ("<|end|> <|endoftext|>", {"eos_token_id": 1}, [1, 0]),
        ("</s> <turn|> <|tool_response>", {"eos_token_id": 1}, [1, 2]),
        ("<s> </s>", {}, [1]),
        ("<|fim_pad|> <|repo_name|> <|file_sep|> <|fim_prefix|>", {}, [0, 1, 2]),
        ("<|fim_pad|> b", {"fim_pad_token_id": 1}, [1]),
    ],
)
def test_ends_by_their_text_are_those_of_llama_cpp(tokens: str, ids: dict[str, int], ends: list[int]) -> None:
    assert end_tokens(cast(GgufFile, Metadata(**ids)), tokens.split()) == ends


def test_an_end_that_is_no_token_is_refused() -> None:
    with pytest.raises(CheckpointError, match="eot_token_id 7 is no token"):
        end_tokens(cast(GgufFile, Metadata(eot_token_id=7)), ["a"])
