"""Training prompts as a target reads them, in its chat template and as token ids."""

from __future__ import annotations

from dflash_compile.export.checkpoint import TargetCheckpoint

from .gathering import PROMPT_ROOM, tokenizer_of
from .prompts import template_prompts
from .responses import ChatFrame


def prompt_tokens(checkpoint: TargetCheckpoint, tokens: int, seed: int = 0) -> list[list[int]]:
    """Prompts of at most `PROMPT_ROOM` tokens until these are `tokens` together. Raises `UsageError` for a target without a chat template."""
    frame, found, count = ChatFrame(tokenizer_of(checkpoint)), [], 0
    for message in template_prompts(seed):
        ids = list(frame.prompt(message))
        if len(ids) <= PROMPT_ROOM:
            found.append(ids)
            count += len(ids)
        if count >= tokens:
            break
    return found
