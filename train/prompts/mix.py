"""All kinds of prompts in turn."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from functools import partial

from .library import code_prompt, document_prompt
from .programming import programming_prompt
from .snippets import snippet_prompt
from .templates import TEMPLATES, templated
from .tools import tool_prompt
from .word_problems import word_problem


def template_prompts(seed: int) -> Iterator[str]:
    """Endless user messages of every kind in turn, code and tools more often: drafts pay most there.

    The same seed gives the same prompts.
    """
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], str]] = [
        *(partial(templated, category) for category in (*TEMPLATES, "code", "tools", "chat")),
        *(tool_prompt, word_problem, snippet_prompt),
        *[programming_prompt] * 4,
        *(document_prompt, code_prompt),
    ]
    for kind in itertools.cycle(kinds):
        yield kind(rng)
