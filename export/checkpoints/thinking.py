"""Which variable a chat template switches thinking with, found by trying it on a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

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
    for variable in VARIABLES if text.chat_template is not None else ():
        try:
            on, off, unset, again = (
                _render(text, given) for given in ({variable: True}, {variable: False}, {}, {variable: True})
            )
        except (TemplateError, TypeError, ValueError):  # told where a prompt is made
            continue
        if on == again != off:  # a template may write the time of day
            return ThinkingSwitch(variable, {on: True, off: False}.get(unset))
    return None


def _render(text: TextSource, variables: dict[str, bool]) -> str:
    from transformers.utils.chat_template_utils import (
        render_jinja_template,
    )  # here: configurations are paired without it

    given: dict[str, Any] = {"bos_token": text.bos_token or "", "eos_token": text.eos_token or "", **variables}
    rendered = render_jinja_template([PROBE], chat_template=text.chat_template, add_generation_prompt=True, **given)[0]
    return str(rendered[0])
