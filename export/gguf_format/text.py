"""The tokenizer and chat template of a GGUF file, as a `tokenizers` file. Byte-level BPE only."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..checkpoints.checkpoint import TextSource
from .ends import end_tokens
from .pretokenizers import TABLE, Rules
from .reading import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5
"""`tokenizer.ggml.token_type`"""


def read_text(file: GgufFile) -> tuple[TextSource, str | None]:
    """The text side and the padding token of `file`.

    Raises `CheckpointError` for a tokenizer that is not byte-level BPE and for an unknown pre-tokenizer.
    """
    kind = file.require("tokenizer.ggml.model")
    if kind != "gpt2":
        raise file.fault(
            "tokenizer.ggml.model",
            f"tokenizer model {kind!r} is not supported",
            "only byte-level BPE can be rebuilt exactly; a SentencePiece file keeps scores but not the rules for spaces"
            " and bytes",
        )
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    rules = _rules(file)
    tokenizer = _tokenizer(file, tokens, rules)
    special = {role: _special(file, tokens, f"{role}_token_id") for role in ("bos", "eos", "padding")}
    _add_ends(file, tokenizer, rules, tokens)
    text = TextSource(
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=file.metadata.get("tokenizer.chat_template"),
        bos_token=special["bos"],
        eos_token=special["eos"],
        tokens={} if special["padding"] is None else {"pad_token": special["padding"]},
        generation={"eos_token_id": end_tokens(file, tokens)},
    )
    return text, special["padding"]


def _rules(file: GgufFile) -> Rules:
    name = file.require("tokenizer.ggml.pre")
    if name not in TABLE:
        raise file.fault(
            "tokenizer.ggml.pre",
            f"pre-tokenizer {name!r} is not known",
            f"known: {', '.join(sorted(TABLE))}; splitting text by other rules gives other ids",
        )
    return TABLE[name]


def _tokenizer(file: GgufFile, tokens: list[str], rules: Rules) -> Tokenizer:
    kinds: list[int] = file.require("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in file.require("tokenizer.ggml.merges")]
    if len(kinds) != len(tokens):
        raise file.fault(
            "tokenizer.ggml.token_type",
            f"{len(tokens)} tokens have {len(kinds)} types",
            "the tokenizer's tables contradict each other",
            "convert the model again",
        )
    # Unused entries only pad the table to the embedding's height; left in, their names could be matched in text.
    vocab = {token: index for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind != UNUSED}
    try:
        tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=rules.whole_words))
    except Exception as error:  # tokenizers raises bare Exception for merges outside the vocabulary
        raise file.fault(
            "tokenizer.ggml.merges",
            "the tokenizer's tables contradict each other",
            str(error),
            "convert the model again",
        ) from None
    if rules.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(rules.steps())
    tokenizer.decoder = decoders.ByteLevel()
    named = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind in (CONTROL, USER_DEFINED)]
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token, kind in named if kind == CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False, special=False) for token, kind in named if kind == USER_DEFINED]
    )
    return tokenizer


def _special(file: GgufFile, tokens: list[str], key: str) -> str | None:
    index: int | None = file.metadata.get(f"tokenizer.ggml.{key}")
    if index is None:
        return None
    if not 0 <= index < len(tokens):
        raise file.fault(
            f"tokenizer.ggml.{key}",
            f"{key} {index} is no token",
            f"the vocabulary has {len(tokens)} entries",
            "convert the model again",
        )
    return tokens[index]


def _add_ends(file: GgufFile, tokenizer: Tokenizer, rules: Rules, tokens: list[str]) -> None:
    """Tokens the file says are put around every text."""
    bos: int | None = (
        file.metadata.get("tokenizer.ggml.bos_token_id")
        if file.metadata.get("tokenizer.ggml.add_bos_token", rules.adds_bos)
        else None
    )
    eos: int | None = (
        file.metadata.get("tokenizer.ggml.eos_token_id")
        if file.metadata.get("tokenizer.ggml.add_eos_token", False)
        else None
    )
    used = [(tokens[index], index) for index in (bos, eos) if index is not None]
    if used:
        single = [
            *([f"{tokens[bos]}:0"] if bos is not None else []),
            "$A:0",
            *([f"{tokens[eos]}:0"] if eos is not None else []),
        ]
        pair = [*single, *(part[:-1].replace("$A", "$B") + "1" for part in single)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=used)
