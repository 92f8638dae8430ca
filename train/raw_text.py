"""Plain text with the target's features: cheaper than responses by far, since one pass takes a whole text in.

The labels are what the text says, not what the target would; it teaches copying and grammar, and responses teach the
rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .features import FeatureStore
from .prompts.library import library_documents, library_files

TAG = "text"
LENGTH = 256
"""tokens of a piece at most"""


def library_texts(seed: int) -> Iterator[str]:
    """Endless pieces of the standard library, one of prose and two of source in turn; the same seed gives the same
    pieces.
    """
    rng = random.Random(seed)
    prose, source = library_documents(), library_files()
    while True:
        text = rng.choice(prose)
        yield text[rng.randrange(max(1, len(text) - 800)) :]
        for _ in range(2):
            lines = rng.choice(source).read_text(encoding="utf-8", errors="ignore").splitlines(keepends=True)
            start = rng.randrange(len(lines))
            yield "".join(lines[start : start + 60])


def _pieces(tokenizer: Any, texts: Iterator[str], length: int) -> Iterator[list[int]]:
    for text in texts:
        ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
        if len(ids) >= 32:
            yield ids[:length]


Reader = Callable[[list[int]], torch.Tensor]
"""token ids of a text to its tap features [len, taps * hidden]"""


def reader(model: Any, taps: tuple[int, ...]) -> Reader:
    """Reads with the transformers target `model`, which has its usual attention."""
    device = next(model.parameters()).device

    @torch.inference_mode()
    def read(ids: list[int]) -> torch.Tensor:
        states = model.model(
            torch.tensor([ids], device=device), use_cache=False, output_hidden_states=True
        ).hidden_states
        return torch.cat([states[layer + 1][0] for layer in taps], dim=-1)

    return read


def add_raw_text(
    store: FeatureStore,
    read: Reader,
    tokenizer: Any,
    tokens: int,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    length: int = LENGTH,
) -> None:
    """Append pieces of at most `length` tokens until the store holds `tokens` tokens of plain text.

    `on_progress(tokens kept, tokens wanted)`.
    """
    kept = sum(entry.length for entry in store.entries if entry.tag == TAG)
    pieces = _pieces(tokenizer, library_texts(seed + kept), length)
    while kept < tokens:
        ids = next(pieces)
        store.append(ids, read(ids), 1, TAG)
        kept += len(ids)
        on_progress(kept, tokens)
