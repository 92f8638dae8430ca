"""What a generator is asked for and what it hands back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True)
class Request:
    """What to generate: `prompt` ids, at most `limit` new tokens, greedy when `temperature` is 0."""

    prompt: tuple[int, ...]
    limit: int
    temperature: float = 0.0
    tag: str = ""


@dataclass
class Sequence:
    """A finished sequence. `features[i]` belongs to `tokens[i]`; the last token's row is zero (never fed)."""

    request: Request
    tokens: list[int]
    features: torch.Tensor
    """[tokens, taps * hidden], the model's dtype"""


class Generator(Protocol):
    """Answers many requests at once."""

    length: int
    """rows of a slot: prompt and answer together"""
    stop_ids: frozenset[int]

    def fits(self, request: Request) -> bool:
        """Whether prompt and answer fit a slot."""
        ...

    def run(self, requests: Iterator[Request], on_finish: Callable[[Sequence], None]) -> None:
        """Serve `requests` until the iterator ends; `on_finish` gets each sequence as it completes."""
        ...
