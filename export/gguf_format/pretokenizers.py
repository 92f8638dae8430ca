"""How text is split before BPE, by the name in `tokenizer.ggml.pre`. An unknown name is never guessed.

The patterns are those the models' own tokenizer files publish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers


@dataclass(frozen=True)
class Rules:
    """One way of splitting, and what goes with it."""

    steps: Callable[[], list[Any]]
    """the pre-tokenizers, in order; the last maps bytes to printable characters"""
    nfc: bool = False
    """text is brought to Unicode form C first"""
    whole_words: bool = False
    """a word that is itself a token is not built from merges"""
    adds_bos: bool = False
    """the beginning token is put before every text where the file does not say"""


def _gpt2() -> list[Any]:
    return [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]


def _smollm() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), *_gpt2()]


def _pattern(digits: str) -> Callable[[], list[Any]]:
    """The GPT-4 style pattern, which differs between models in how many digits go together."""
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]


TABLE = {
    "gpt-2": Rules(_gpt2),
    "smollm": Rules(_smollm),
    "llama-bpe": Rules(_pattern(r"\p{N}{1,3}"), whole_words=True, adds_bos=True),
    "qwen2": Rules(_pattern(r"\p{N}"), nfc=True),
}
