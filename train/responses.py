"""Responses of the target to training prompts, kept with their tap features.

Two kinds of prompt, half each: filled templates (`prompts.py`) and questions the target makes up itself when it is
given an open user turn and sampled at temperature 1, which cost no data set and look like what it was trained on.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from dflash_compile.runtime.errors import UsageError

from .features import FeatureStore
from .prompts.mix import template_prompts
from .raw_text import TAG
from .request import Generator, Request, Sequence

ASK = "ask"
ANSWER = "answer"


@dataclass(frozen=True)
class ResponsePlan:
    """How much to generate. `tokens` counts response tokens kept in the store."""

    tokens: int
    seed: int = 0
    response_limit: int = 256
    question_limit: int = 120
    warm_share: float = 0.2
    """share of the responses sampled at temperature 0.7 instead of greedily"""


class ChatFrame:
    """The chat template cut at the user's message: ids before it, and ids between it and the answer."""

    def __init__(self, tokenizer: Any) -> None:
        mark = "\u2983"
        if tokenizer.chat_template is None:
            raise UsageError(
                "this target has no chat template",
                why="the drafter learns from its answers to messages",
                fix="add chat_template.jinja to the target, as its users will format prompts",
            )
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
            )
        except TemplateError as error:
            raise UsageError(
                "the chat template cannot be used",
                why=f"{type(error).__name__}: {error}",
                fix="correct the target's chat template",
            ) from error
        before, found, after = text.partition(mark)
        if not found:
            raise UsageError(
                "the chat template leaves out the user's message",
                why=f"it gives {text!r:.60}",
                fix="correct the target's chat template",
            )
        self.tokenizer = tokenizer
        self.before = tuple(self.encode(before))
        self.after = tuple(self.encode(after))

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return ids

    def prompt(self, message: str) -> tuple[int, ...]:
        return (*self.before, *self.encode(message), *self.after)


class ResponseWriter:
    """Feeds a generator from both prompt sources until the store holds `plan.tokens` response tokens."""

    def __init__(self, store: FeatureStore, frame: ChatFrame, generator: Generator, plan: ResponsePlan) -> None:
        self.store, self.frame, self.generator, self.plan = store, frame, generator, plan
        self.kept = sum(entry.length - entry.prompt for entry in store.entries if entry.tag != TAG)
        self.random = random.Random(plan.seed * 7919 + len(store.entries))
        self.templates = template_prompts(plan.seed * 104729 + len(store.entries))
        self.questions: deque[tuple[int, ...]] = deque()
        self.passed_over = 0
        """prompts left out because they do not fit a slot together with their answer"""

    def run(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Generate and store. `on_progress(tokens kept, tokens wanted)` after every sequence."""

        def finish(sequence: Sequence) -> None:
            if sequence.request.tag == ASK:
                self._take_question(sequence)
            else:
                self.store.append(
                    sequence.tokens, sequence.features, len(sequence.request.prompt), sequence.request.tag
                )
                self.kept += len(sequence.tokens) - len(sequence.request.prompt)
                on_progress(self.kept, self.plan.tokens)

        self.generator.run(self._requests(), finish)

    def _take_question(self, sequence: Sequence) -> None:
        question = sequence.tokens[len(self.frame.before) :]
        if len(question) > 4 and question[-1] in self.generator.stop_ids:
            self.questions.append((*self.frame.before, *question[:-1], *self.frame.after))

    def _requests(self) -> Iterator[Request]:
        """Requests that fit a slot; a source that gives none for long is an error, not an endless search."""
        in_a_row = 0
        for request in self._wanted():
            if self.generator.fits(request):
                in_a_row = 0
                yield request
                continue
            self.passed_over += 1
            in_a_row += 1
            if in_a_row > 1000:
                raise UsageError(
                    "no training prompt fits",
                    why=(
                        f"prompt and answer together have {self.generator.length} rows, and the chat template alone may"
                        " take most of them"
                    ),
                    fix=(
                        "lower --response-limit, or use a target with more positions, or a bundle built with a larger"
                        " --max-context"
                    ),
                )

    def _wanted(self) -> Iterator[Request]:
        while self.kept < self.plan.tokens:
            temperature = 0.7 if self.random.random() < self.plan.warm_share else 0.0
            if self.questions:
                yield Request(self.questions.popleft(), self.plan.response_limit, temperature, ANSWER)
            elif self.random.random() < 0.5:
                yield Request(self.frame.before, self.plan.question_limit, 1.0, ASK)
            else:
                yield Request(
                    self.frame.prompt(next(self.templates)), self.plan.response_limit, temperature, "template"
                )
