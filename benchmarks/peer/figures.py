"""What the turns come to, per suite and over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dflash_compile.cli.bench.records import SpreadRecord
from dflash_compile.cli.bench.spread import quartiles

from .rounds import Question, Turn

OVERALL = "all suites"


@dataclass(frozen=True)
class Row:
    """One engine. Spreads are over rounds: a round's figure is of all its answers together."""

    engine: str
    tokens_per_second: SpreadRecord
    """of decoding: all tokens but each answer's first"""
    against_plain: SpreadRecord
    """that speed over the fastest plain decoding's in the same round"""
    cpu_ms_per_token: SpreadRecord
    """of the engine's process, all threads, waiting by spinning included"""
    ttft_ms: SpreadRecord
    """to the first token, over single answers"""
    equal_answers: int
    """prompts whose every answer has the very tokens that the first bundle writes"""
    equal_leading: float
    """share of tokens before the first that differs from the first bundle's, mean over answers"""
    tau: float | None
    """tokens per drafted cycle; None for plain decoding, and where none was drafted"""
    drafted: float | None
    """share of the cycles that drafted; None for plain decoding"""


@dataclass(frozen=True)
class SuiteFigures:
    """One suite, or all of them."""

    name: str
    prompts: int
    new_tokens: int
    """of one engine in one round"""
    fastest_plain: str
    rows: tuple[Row, ...]


def figures(
    turns: Sequence[Turn], questions: Sequence[Question], engines: Sequence[str], drafting: Iterable[str]
) -> list[SuiteFigures]:
    """Every suite in order, then all of them; `engines` are those that took part, `drafting` those among them that
    draft.
    """
    drafts = frozenset(drafting)
    suites = list(dict.fromkeys(question.suite for question in questions))
    found = []
    for name in [*suites, OVERALL] if len(suites) > 1 else suites:
        chosen = [question for question in questions if name in (question.suite, OVERALL)]
        by_engine = {
            engine: [turn for turn in turns if turn.engine == engine and name in (turn.suite, OVERALL)]
            for engine in engines
        }
        speeds = {engine: speed_by_round(own) for engine, own in by_engine.items()}
        fastest = max(
            (engine for engine in engines if engine not in drafts), key=lambda engine: quartiles(speeds[engine]).median
        )
        rows = [
            _row(engine, by_engine[engine], questions, speeds[engine], speeds[fastest], engine in drafts)
            for engine in engines
        ]
        found.append(
            SuiteFigures(name, len(chosen), sum(len(question.expected) for question in chosen), fastest, tuple(rows))
        )
    return found


def speed_by_round(turns: Sequence[Turn]) -> list[float]:
    """Tokens per second of decoding in each round."""
    return [_decoded(own) / sum(turn.answer.decode_seconds for turn in own) for own in _rounds(turns)]


def leading(tokens: Sequence[int], expected: Sequence[int]) -> float:
    """Share of `expected` before the first token that differs."""
    return next(
        (place for place, (a, b) in enumerate(zip(tokens, expected, strict=True)) if a != b), len(expected)
    ) / len(expected)


def _row(
    engine: str,
    turns: Sequence[Turn],
    questions: Sequence[Question],
    speeds: list[float],
    fastest: list[float],
    drafts: bool,
) -> Row:
    shares = [leading(turn.answer.tokens, questions[turn.question].expected) for turn in turns]
    cycles, drafted, undrafted = (
        sum(turn.answer.own.get(name, 0) for turn in turns) for name in ("cycles", "drafted", "undrafted_tokens")
    )
    return Row(
        engine=engine,
        tokens_per_second=quartiles(speeds),
        against_plain=quartiles(own / other for own, other in zip(speeds, fastest, strict=True)),
        cpu_ms_per_token=quartiles(
            1000 * sum(turn.answer.cpu_seconds for turn in own) / _decoded(own) for own in _rounds(turns)
        ),
        ttft_ms=quartiles(1000 * turn.answer.first_seconds for turn in turns),
        equal_answers=len(
            {turn.question for turn in turns}
            - {turn.question for turn, share in zip(turns, shares, strict=True) if share < 1}
        ),
        equal_leading=sum(shares) / len(shares),
        tau=(_decoded(turns) - undrafted) / drafted if drafts and drafted else None,
        drafted=drafted / cycles if drafts and cycles else None,
    )


def _decoded(turns: Iterable[Turn]) -> int:
    return sum(len(turn.answer.tokens) - 1 for turn in turns)


def _rounds(turns: Sequence[Turn]) -> list[list[Turn]]:
    return [[turn for turn in turns if turn.round == count] for count in sorted({turn.round for turn in turns})]
