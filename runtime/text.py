"""Text to token ids and back: a bundle's tokenizer and chat template. Knows nothing of engines."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from .bundle.manifest import ThinkingRecord
from .bundle.read import Bundle
from .chat import ChatTemplate, Message
from .detokenizer import TOKENIZER_FIX, AnswerText, Detokenizer
from .errors import BundleError, UsageError
from .foreign import foreign_errors
from .regular import TEXT_BYTES, read_regular
from .stops import StopFilter
from .thinking import thinking_note
from .tokenizer_bounds import check_tokenizer_file

Prompt = str | Sequence[Message] | Sequence[int]
"""text, messages, or token ids"""


class Text:
    """The text side of a bundle."""

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate | None, vocab: int, thinking: ThinkingRecord | None = None
    ) -> None:
        self._tokenizer, self._template, self._vocab, self._thinking = tokenizer, template, vocab, thinking
        self.note: str | None = None
        """what is unusual about the first chat that was not asked for as the drafter was trained, in a sentence for the
        user"""

    def encode(self, prompt: Prompt, *, raw: bool, variables: Mapping[str, Any] | None = None) -> list[int]:
        """Token ids of `prompt`.

        Text is one user message unless `raw`, or the bundle has no chat template: then it is continued as it stands.
        Ids are taken as they are. `variables` are for the chat template.

        Raises `UsageError` for anything else, for messages or variables the template refuses or cannot take, for
        variables where none is used, for ids outside the vocabulary, and for text that is no Unicode; `BundleError`
        where a chat is asked for and the template cannot be read.
        """
        if variables is not None and not isinstance(variables, Mapping):
            raise UsageError(
                f"chat_template_kwargs cannot be {variables!r:.60}", fix="give a mapping from names to values"
            )
        if isinstance(prompt, str):
            if raw or self._template is None:
                _refuse(variables)
                return self._ids(prompt, special=True)
            return self._chat([{"role": "user", "content": prompt}], variables)
        items = _items(prompt)
        # numpy's and torch's integers are no `int`.
        if ids := [int(item) for item in items if isinstance(item, Integral)]:
            _refuse(variables)
            return self._checked(ids, len(items))
        messages = [item for item in items if isinstance(item, Mapping)]
        if len(messages) != len(items):
            raise _no_prompt(prompt)
        if raw and messages:
            raise UsageError("raw text cannot be made of messages", fix="give a string, or leave raw out")
        return self._chat(messages, variables) if messages else []

    def stream(self) -> Detokenizer:
        """A fresh detokenizer."""
        return Detokenizer(self._tokenizer)

    def answer(self, stops: StopFilter, end_ids: Collection[int], *, special_tokens: bool) -> AnswerText:
        """The text of one answer: up to the first of `stops`, with or without `special_tokens`."""
        return AnswerText(self._tokenizer, stops, end_ids, special_tokens=special_tokens)

    def _chat(self, messages: Sequence[Message], variables: Mapping[str, Any] | None) -> list[int]:
        if self._template is None:
            raise UsageError(
                "the bundle has no chat template",
                why="its target was not trained for chat",
                fix="give plain text with raw=True",
            )
        # The template writes the special tokens itself.
        ids = self._ids(self._template.render(messages, variables), special=False)
        self.note = self.note or thinking_note(self._thinking, variables)
        return ids

    def _ids(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError as fault:  # half a surrogate pair: how Python shows bytes that were no UTF-8
            raise UsageError("the prompt is not Unicode text", why=str(fault), fix="give it in UTF-8") from fault
        with foreign_errors(BundleError, "the tokenizer cannot take this text", fix=TOKENIZER_FIX):
            return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def _checked(self, ids: list[int], length: int) -> list[int]:
        if len(ids) != length or not all(0 <= token < self._vocab for token in ids):
            raise UsageError(
                "a prompt of token ids holds something else",
                why=f"ids are integers from 0 to {self._vocab - 1}",
                fix="give ids of this bundle's tokenizer and nothing else, or give text",
            )
        return ids


def _refuse(variables: Mapping[str, Any] | None) -> None:
    if variables:
        raise UsageError(
            "chat_template_kwargs without a chat",
            why="raw text and token ids go through no template",
            fix="leave them out, or give messages",
        )


def _items(prompt: Prompt) -> list[object]:
    """What a prompt that is no text is made of. An array of ids counts as a list of them."""
    if isinstance(prompt, Mapping | bytes | bytearray) or not isinstance(prompt, Iterable):
        raise _no_prompt(prompt)
    return list(prompt)


def _no_prompt(prompt: object) -> UsageError:
    return UsageError(
        f"a prompt cannot be {prompt!r:.60}",
        fix="give text, a list of messages ({'role': …, 'content': …}), or a list of token ids",
    )


def open_text(bundle: Bundle) -> Text:
    """The text side of `bundle`. Raises `BundleError` for a tokenizer or template that cannot be read."""
    record, vocab = bundle.manifest.text, bundle.manifest.target.vocab
    tokenizer = _tokenizer(bundle.file(record.tokenizer), vocab)
    if record.chat_template is None:
        return Text(tokenizer, None, vocab)
    template = ChatTemplate(
        _source(bundle, record.chat_template),
        bos_token=record.bos_token,
        eos_token=record.eos_token,
        tokens=record.tokens,
        tool_use=None if record.tool_template is None else _source(bundle, record.tool_template),
    )
    return Text(tokenizer, template, vocab, bundle.manifest.pairing.thinking)


def _source(bundle: Bundle, name: str) -> str:
    file = bundle.file(name)
    with foreign_errors(BundleError, "the chat template cannot be read", where=str(file), fix="build the bundle again"):
        return read_regular(file, TEXT_BYTES).decode("utf-8")


def _tokenizer(file: Path, vocab: int) -> Tokenizer:
    with foreign_errors(BundleError, "the tokenizer cannot be read", where=str(file), fix="build the bundle again"):
        content = read_regular(file, TEXT_BYTES)
        check_tokenizer_file(content)
        tokenizer = Tokenizer.from_buffer(content)
    # Files saved while training often carry both; here they would cut prompts short, or fill them up, without a word.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if (largest := max(tokenizer.get_vocab().values(), default=-1)) >= vocab:
        raise BundleError(
            f"the tokenizer writes ids up to {largest}; the target's vocabulary is {vocab}",
            where=str(file),
            why="it belongs to another model",
            fix="build the bundle from a checkpoint with its own tokenizer",
        )
    return tokenizer
