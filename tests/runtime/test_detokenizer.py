"""Answers of byte-fallback tokenizers, and special tokens in answers and in stop strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from dflash_compile.runtime.stops import StopFilter
from dflash_compile.runtime.text import Text

LETTERS = "▁abcd"
END, CALL = 1, 2
FIRST_BYTE, FIRST_LETTER = 3, 259


def byte_fallback() -> Tokenizer:
    """As SentencePiece converts: bytes that no token covers are tokens of their own."""
    special = {"<unk>": 0, "</s>": END, "<|call|>": CALL}
    pieces = {f"<0x{byte:02X}>": FIRST_BYTE + byte for byte in range(256)}
    letters = {letter: FIRST_LETTER + place for place, letter in enumerate(LETTERS)}
    tokenizer = Tokenizer(
        models.BPE(vocab=special | pieces | letters, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


TOKENIZER = byte_fallback()
TEXT = Text(TOKENIZER, None, TOKENIZER.get_vocab_size())


def ids(text: str) -> list[int]:
    """Of letters, `␣` for the space, and bytes in hexadecimal between brackets."""
    found = []
    for part in text.replace("[", " [").replace("]", "] ").split():
        found += (
            [FIRST_BYTE + int(part[1:-1], 16)]
            if part.startswith("[")
            else [FIRST_LETTER + LETTERS.index(letter) for letter in part.replace("␣", "▁")]
        )
    return found


def streamed(tokens: list[int]) -> str:
    stream = TEXT.stream()
    return "".join(map(stream.feed, tokens))


@pytest.mark.parametrize(
    ("tokens", "shown"),
    [
        ("a[0A][F0][9F]b", "a\n\ufffd\ufffdb"),
        ("a[E2][82][AC][F0]b", "a€\ufffdb"),
        ("[E2][82][AC]", "€"),
        ("[FF]a", "\ufffda"),
        ("␣a␣[F0]␣b", "a \ufffd b"),
        ("a[F0][9F]", "a"),
    ],
)
def test_bytes_that_are_no_character_are_shown_as_such(tokens: str, shown: str) -> None:
    assert streamed(ids(tokens)) == shown


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=40))
def test_no_answer_raises_and_every_letter_is_shown(tokens: list[int]) -> None:
    shown, ends = streamed(tokens), [place for place, token in enumerate(tokens) if token >= FIRST_LETTER + 1]
    letters = [LETTERS[token - FIRST_LETTER] for token in tokens if token >= FIRST_LETTER + 1]
    typed = [FIRST_BYTE + ord(letter) for letter in LETTERS[1:]]
    if not set(typed) & set(tokens):
        assert [letter for letter in shown if letter in LETTERS[1:]] == letters
    assert bool(shown) or not ends


@given(st.text(alphabet="abcd \né€😀", max_size=30))
def test_text_is_shown_as_the_tokenizer_decodes_it(text: str) -> None:
    tokens = [
        token
        for letter in text.replace(" ", "▁")
        for token in (
            [FIRST_LETTER + LETTERS.index(letter)]
            if letter in LETTERS
            else [FIRST_BYTE + byte for byte in letter.encode()]
        )
    ]
    assert streamed(tokens) == TOKENIZER.decode(tokens)


def answer(tokens: list[int], *stops: str, special_tokens: bool = False) -> tuple[str, bool]:
    text = TEXT.answer(StopFilter(stops), [END], special_tokens=special_tokens)
    shown = ""
    for token in tokens:
        shown += text.feed(token)
        if text.stopped:
            return shown, True
    return shown + text.flush(), False


CALLED = [*ids("ab"), CALL, *ids("cd"), END]


@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        (["<|call|>"], ("ab", True)),
        (["b<|call|>c"], ("a", True)),
        (["call"], ("ab", True)),
        (["bc"], ("abcd", False)),
        (["<|call|>x"], ("abcd", False)),
        (["</s>"], ("abcd", False)),
        ([], ("abcd", False)),
    ],
)
def test_stop_strings_see_special_tokens_that_are_not_shown(stops: list[str], shown: tuple[str, bool]) -> None:
    assert answer(CALLED, *stops) == shown


@pytest.mark.parametrize(
    ("stops", "shown"), [([], "ab<|call|>cd</s>"), (["call"], "ab<|"), (["bc"], "ab<|call|>cd</s>")]
)
def test_special_tokens_are_shown_where_asked_for(stops: list[str], shown: str) -> None:
    assert answer(CALLED, *stops, special_tokens=True)[0] == shown
