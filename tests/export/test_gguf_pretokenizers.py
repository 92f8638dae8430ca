"""Pre-tokenizers named in GGUF files against transformers' own construction of the same tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter

from dflash_compile.export.gguf_format.pretokenizers import TABLE

VOCAB = {"<|endoftext|>": 0, "a": 1}
LLAMA3 = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(TikTokenConverter(vocab_file="none").pattern), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
REFERENCES = {
    "gpt-2": GPT2Tokenizer(vocab=VOCAB, merges=[]).backend_tokenizer.pre_tokenizer,
    "qwen2": Qwen2Tokenizer(vocab=VOCAB, merges=[]).backend_tokenizer.pre_tokenizer,
    "llama-bpe": LLAMA3,
}
TEXT = st.text(
    alphabet=st.one_of(st.sampled_from("aZ é日١1234 \t\n\r'sStLl.,!_-\u00a0🙂"), st.characters(codec="utf-8")),
    max_size=24,
)


@pytest.mark.parametrize("name", REFERENCES)
@given(text=TEXT)
def test_text_is_split_as_transformers_splits_it(name: str, text: str) -> None:
    ours = pre_tokenizers.Sequence(TABLE[name].steps())
    assert ours.pre_tokenize_str(text) == REFERENCES[name].pre_tokenize_str(text)


@given(text=TEXT)
def test_smollm_takes_digits_one_at_a_time_and_the_rest_as_gpt2(text: str) -> None:
    pieces = [piece for piece, _ in pre_tokenizers.Sequence(TABLE["smollm"].steps()).pre_tokenize_str(text)]
    assert all(len(piece) == 1 for piece in pieces if any(letter in "0123456789" for letter in piece))
    if not any(letter.isnumeric() for letter in text):
        assert pieces == [piece for piece, _ in REFERENCES["gpt-2"].pre_tokenize_str(text)]


def test_what_goes_with_the_patterns() -> None:
    assert Qwen2Tokenizer(vocab=VOCAB, merges=[]).backend_tokenizer.normalizer is not None
    assert {name for name, rules in TABLE.items() if rules.nfc} == {"qwen2"}
    assert {name for name, rules in TABLE.items() if rules.whole_words and rules.adds_bos} == {"llama-bpe"}
