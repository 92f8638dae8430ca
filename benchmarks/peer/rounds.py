"""One interleaved run: for every prompt all engines answer in turn, so that whatever else the machine does falls on all
alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .process import Answer, Engine, LeftOutError

WARM_UP_TOKENS = 16
SHORTEST = 8
"""tokens of an answer below which its speed says nothing"""
_PAUSE = 0.05
"""seconds between two turns, in which the idle threads of the last engine go to sleep"""


@dataclass(frozen=True)
class Question:
    """A prompt in token ids, and what every engine is asked for."""

    suite: str
    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    """what the first bundle writes: as long as every engine's answer is to be"""


@dataclass(frozen=True)
class Turn:
    """One answer of one engine."""

    engine: str
    suite: str
    question: int
    round: int
    answer: Answer


def plan(plain: Sequence[Engine], suites: Sequence[tuple[str, Sequence[Sequence[int]]]], most: int) -> list[Question]:
    """The questions: as many new tokens as the shortest of the bundles' own answers has, at most `most`.

    Where an answer would end, its engine stops, but the others would be made to go on: so nobody is asked past the end.
    A prompt whose answer has fewer than `SHORTEST` tokens is left out.
    """
    questions = []
    for suite, prompts in suites:
        for prompt in prompts:
            answers = [engine.answer(prompt, most).tokens for engine in plain]
            length = min(len(answer) for answer in answers)
            if length >= SHORTEST:
                questions.append(Question(suite, tuple(prompt), answers[0][:length]))
    return questions


def interleave(
    engines: Sequence[Engine], questions: Sequence[Question], rounds: int, tick: Callable[[str], None]
) -> tuple[list[Turn], list[LeftOutError]]:
    """All answers, and the engines that failed on the way: their answers do not count. `tick` hears of every turn."""
    turns, failed = list[Turn](), dict[str, LeftOutError]()

    def ask(engine: Engine, question: Question, most: int) -> Answer | None:
        if engine.name in failed:
            return None
        time.sleep(_PAUSE)
        try:
            return asked(engine, question, most)
        except LeftOutError as fault:
            failed[engine.name] = fault
            return None

    for engine in engines:
        tick(f"warming up {engine.name}")
        ask(engine, questions[0], WARM_UP_TOKENS)
    for count in range(rounds):
        for number, question in enumerate(questions):
            tick(f"round {count + 1} of {rounds}, prompt {number + 1} of {len(questions)}: {question.suite}")
            for engine in rotated(engines, count + number):
                answer = ask(engine, question, len(question.expected))
                if answer is not None:
                    turns.append(Turn(engine.name, question.suite, number, count, answer))
    return [turn for turn in turns if turn.engine not in failed], list(failed.values())


def asked(engine: Engine, question: Question, most: int) -> Answer:
    """The engine's answer. Raises `LeftOutError` where it is not as long as it was to be."""
    length = min(len(question.expected), most)
    answer = engine.answer(question.prompt, length)
    if len(answer.tokens) != length:
        raise LeftOutError(
            engine.name, f"it gave {len(answer.tokens)} tokens where {length} were asked for", missing=False
        )
    return answer


def rotated(engines: Sequence[Engine], by: int) -> list[Engine]:
    """Another begins each time, so that no engine always follows the same one."""
    start = by % len(engines)
    return [*engines[start:], *engines[:start]]
