"""What a generator is asked for and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass

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
