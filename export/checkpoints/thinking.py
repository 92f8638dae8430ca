"""Which variable a chat template switches thinking with, found by trying it on a message."""

from __future__ import annotations

from dataclasses import dataclass

from dflash_compile.runtime.chat import ChatTemplate
from dflash_compile.runtime.errors import DFlashError

from .checkpoint import TextSource

VARIABLES = ("enable_thinking", "thinking")
"""names in published templates: the first in Qwen3's, SmolLM3's and GLM's, the second in DeepSeek V3.1's and
Granite's"""
PROBE = [{"role": "user", "content": "Hello"}]


@dataclass(frozen=True)
class ThinkingSwitch:
    """The variable a template reads, and what it does without it."""

    variable: str
    default: bool | None
    """None where the prompt is neither that with thinking nor that without"""


def thinking_switch(text: TextSource) -> ThinkingSwitch | None:
    """The switch of the chat template, None where it has none or cannot be used.

    A template that gives the same prompt with a variable on and off does not switch with it.
    """
    if text.chat_template is None:
        return None
    template = ChatTemplate(text.chat_template, bos_token=text.bos_token, eos_token=text.eos_token, tokens=text.tokens)
    for variable in VARIABLES:
        try:
            on, off, unset, again = (
                template.render(PROBE, given) for given in ({variable: True}, {variable: False}, {}, {variable: True})
            )
        except DFlashError:  # told where a prompt is made
            continue
        if on == again != off:  # a template may write the time of day
            return ThinkingSwitch(variable, {on: True, off: False}.get(unset))
    return None
