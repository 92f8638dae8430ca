"""Tokens that end generation by a GGUF file: those of its metadata, and those that llama.cpp knows by their text."""

from __future__ import annotations

from collections.abc import Sequence

from .reading import GgufFile

KEYS = ("eos_token_id", "eot_token_id", "eom_token_id", "fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id")
"""metadata below `tokenizer.ggml`"""
TEXTS = frozenset(
    """<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> <|endoftext|> </s> <|eom_id|>
    <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> <eos> <turn|> <|tool_response>""".split()
)
FILLERS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
"""tokens of fill-in-the-middle that end an answer as well, by text where the metadata leaves them out"""
CALLS = frozenset(("<|call|>", "<|calls|>"))


def end_tokens(file: GgufFile, tokens: Sequence[str]) -> list[int]:
    """Ids of `tokens` that end generation, the metadata's first, then by text in the order of the vocabulary.

    Raises `CheckpointError` for metadata that names no token.
    """
    ids = [token for key in KEYS if (token := _named(file, key, len(tokens))) is not None]
    texts = set(TEXTS).union(*(names for key, names in FILLERS.items() if f"tokenizer.ggml.{key}" not in file.metadata))
    ids += [index for index, token in enumerate(tokens) if token in texts]
    found = {tokens[index] for index in ids}
    # In these formats messages end with them, and answers go on.
    within = {"<|end|>"} if found & CALLS and found & {"<|return|>", "<|flush|>"} else set()
    within |= {"</s>"} if "<|tool_response>" in found else set()
    return [index for index in dict.fromkeys(ids) if tokens[index] not in within]


def _named(file: GgufFile, key: str, tokens: int) -> int | None:
    index = file.metadata.get(f"tokenizer.ggml.{key}")
    if index is None or (isinstance(index, int) and 0 <= index < tokens):
        return index
    raise file.fault(
        f"tokenizer.ggml.{key}",
        f"{key} {index} is no token",
        f"the vocabulary has {tokens} entries",
        "convert the model again",
    )
