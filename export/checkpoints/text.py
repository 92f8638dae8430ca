"""The text side of a checkpoint: tokenizer, chat template, special tokens, generation defaults."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dflash_compile.runtime.errors import CheckpointError
from dflash_compile.runtime.foreign import foreign_errors
from dflash_compile.runtime.regular import TEXT_BYTES, read_regular
from dflash_compile.runtime.tokenizer_bounds import check_tokenizer_file

from .checkpoint import TextSource
from .files import read_json_if_any, section, visible

DEFAULT, TOOL_USE = "default", "tool_use"
"""names of chat templates; the second is for chats with tools"""
NO_TOKEN = -1
"""what some configurations say instead of leaving a special token out"""
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    TEMPLATE,
    "generation_config.json",
)


def read_text(folder: Path) -> tuple[TextSource, tuple[Path, ...]]:
    """The text side of a transformers directory, and the files it came from.

    Raises `CheckpointError` when there is no `tokenizer.json` or a file is damaged.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(
            "tokenizer.json is missing",
            where=str(folder),
            why="a bundle carries its tokenizer in that form; older forms need code that a bundle does not have",
            fix=(
                "make it where transformers can load the tokenizer:"
                f" AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            ),
        )
    settings = read_json_if_any(folder / "special_tokens_map.json") | read_json_if_any(folder / "tokenizer_config.json")
    templates = _templates(folder, settings)
    text = TextSource(
        tokenizer_json=_bytes(path),
        chat_template=templates.get(DEFAULT),
        bos_token=_token(settings.get("bos_token")),
        eos_token=_token(settings.get("eos_token")),
        tokens=_named_tokens(settings),
        tool_template=templates.get(TOOL_USE),
        generation=read_json_if_any(folder / "generation_config.json"),
    )
    named = visible(folder / TEMPLATES, "*.jinja")
    return text, (*(folder / name for name in FILES if (folder / name).exists()), *named)


def pad_token(folder: Path) -> str | None:
    """The padding token a transformers directory names, if any."""
    settings = read_json_if_any(folder / "special_tokens_map.json") | read_json_if_any(folder / "tokenizer_config.json")
    return _token(settings.get("pad_token"))


def load_tokenizer(text: TextSource, where: str) -> Tokenizer:
    """The tokenizer of `text`. Raises `CheckpointError` when the file is no tokenizer."""
    with foreign_errors(
        CheckpointError, "the tokenizer cannot be read", where=where, fix="copy or download tokenizer.json again"
    ):
        check_tokenizer_file(text.tokenizer_json)
        return Tokenizer.from_str(text.tokenizer_json.decode("utf-8"))


def check_tokenizer(text: TextSource, vocab: int, where: str) -> Tokenizer:
    """The tokenizer, once every id it can produce is known to be below `vocab`, and its special tokens to be tokens.

    Raises `CheckpointError` otherwise.
    """
    tokenizer = load_tokenizer(text, where)
    token, highest = max(
        tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1], default=("", -1)
    )
    if highest >= vocab:
        raise CheckpointError(
            f"the tokenizer does not belong to this model: token {token!r} has id {highest}",
            where=where,
            why=f"the embedding has {vocab} rows, so ids end at {vocab - 1}",
            fix="use the tokenizer.json of the same model and revision",
        )
    for role, word in (("bos", text.bos_token), ("eos", text.eos_token)):
        if word is not None and tokenizer.token_to_id(word) is None:
            raise CheckpointError(
                f"the {role} token {word!r} is not in the tokenizer",
                where=where,
                why="the tokenizer's files contradict each other",
                fix="use tokenizer files of one revision",
            )
    return tokenizer


def end_ids(tokenizer: Tokenizer, text: TextSource, declared: object) -> tuple[int, ...]:
    """Every id that ends generation: those of the generation defaults or, where these name none, those `declared` by
    the configuration (an id or a list of ids), as in transformers; then the tokenizer's end-of-turn token.
    """
    ids = token_ids(text.generation.get("eos_token_id")) or token_ids(declared)
    turn = None if text.eos_token is None else tokenizer.token_to_id(text.eos_token)
    return tuple(dict.fromkeys([*ids, *([] if turn is None else [turn])]))


def token_ids(value: object) -> list[int]:
    """The ids in what a configuration gives for a role of tokens: one, a list of them, or nothing."""
    return [
        int(entry)
        for entry in (value if isinstance(value, list) else [value])
        if isinstance(entry, int) and not isinstance(entry, bool) and entry != NO_TOKEN
    ]


def vocabulary_hash(tokenizer_json: bytes) -> str:
    """sha256 over every (id, token) in order: equal for two files that give tokens the same ids, however they are
    written.
    """
    tokens = Tokenizer.from_str(tokenizer_json.decode("utf-8")).get_vocab(with_added_tokens=True)
    ordered = sorted((index, token) for token, index in tokens.items())
    return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()


def template_hash(template: str | None) -> str | None:
    """sha256 of a chat template, None where there is none."""
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()


def _bytes(path: Path) -> bytes:
    with foreign_errors(
        CheckpointError, f"{path.name} cannot be read", where=str(path), fix="copy or download the file again"
    ):
        return read_regular(path, TEXT_BYTES)


def _token(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens beside those of beginning and end, by role or by the name that a model gives them."""
    extra = settings.get("extra_special_tokens")
    named = {**settings, **section(settings.get("model_specific_special_tokens")), **section(extra)}
    found = {name: _token(value) for name, value in named.items() if name.endswith("_token") or name in section(extra)}
    return {
        name: token
        for name, token in sorted(found.items())
        if token is not None and name not in ("bos_token", "eos_token")
    }


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: those in files of their own or, where there are none, those of the settings.

    Raises `CheckpointError` where there are some and none is the default one.
    """
    files = {path.stem: path for path in visible(folder / TEMPLATES, "*.jinja")}
    if (folder / TEMPLATE).exists():
        files[DEFAULT] = folder / TEMPLATE
    named = {name: _template(path) for name, path in files.items()} or _settled(settings.get("chat_template"))
    if named is None or (named and DEFAULT not in named):
        raise CheckpointError(
            "no chat template is the default one",
            where=f"{folder / 'tokenizer_config.json'}: chat_template",
            why=f"found {', '.join(sorted(named or {})) or 'no named template'}",
            fix="write the one to use to chat_template.jinja in the same folder",
        )
    return named


def _settled(found: object) -> dict[str, str] | None:
    """Templates in the tokenizer's settings, None where there is something that is no template."""
    if found is None or isinstance(found, str):
        return {} if found is None else {DEFAULT: found}
    entries = [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []
    named = {entry.get("name"): entry.get("template") for entry in entries}
    return {
        name: template for name, template in named.items() if isinstance(name, str) and isinstance(template, str)
    } or None


def _template(path: Path) -> str:
    with foreign_errors(
        CheckpointError, f"{path.name} cannot be read", where=str(path), fix="copy or download the file again"
    ):
        return read_regular(path, TEXT_BYTES).decode("utf-8")
