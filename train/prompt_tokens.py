"""Training prompts as a target reads them, in its chat template and as token ids."""

from __future__ import annotations

from itertools import islice

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.runtime.errors import UsageError

from .gathering import PROMPT_ROOM, tokenizer_of
from .prompts.mix import template_prompts
from .responses import ChatFrame

_TRIES = 1000
"""prompts in a row that may be too long"""


def prompt_tokens(checkpoint: TargetCheckpoint, tokens: int, seed: int = 0) -> list[list[int]]:
    """Whole prompts of at most `PROMPT_ROOM` tokens each, without answers, as few as have `tokens` together.

    Raises `UsageError` for a target without a chat template, or with too few positions for any prompt.
    """
    if checkpoint.text.chat_template is None:
        raise UsageError(
            "this target has no chat template to ask in",
            fix="give a text file of what it will read and write, or add chat_template.jinja to it",
        )
    frame, room = ChatFrame(tokenizer_of(checkpoint)), min(PROMPT_ROOM, checkpoint.spec.max_positions)
    messages, found, count = template_prompts(seed), list[list[int]](), 0
    while count < tokens:
        ids = next(
            (list(prompt) for prompt in map(frame.prompt, islice(messages, _TRIES)) if len(prompt) <= room), None
        )
        if ids is None:
            raise UsageError(
                "no prompt fits the target", why=f"it has {room} positions for one", fix="give a text file instead"
            )
        found.append(ids)
        count += len(ids)
    return found
