"""What an answer was, and what the drafter would have proposed at each of its places.

Kept as a file beside the prices of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from bundle.calls import fill

from dflash_compile.cli.bench.suite import Suite
from dflash_compile.runtime.cycles import Cycles
from dflash_compile.runtime.engines import DrafterEngine
from dflash_compile.runtime.policy.controller import FixedWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Recorder

from .prices import Prices, measure_prices

POSITION = 128
"""rows in the caches where calls are timed, or as many as leave room for a block"""


class Answer(msgspec.Struct, frozen=True):
    """One prompt's answer by plain decoding."""

    suite: str
    prompt: list[int]
    tokens: list[int]
    """the answer's, and behind `length` as many more as a block that begins in it may ask for"""
    length: int
    """tokens of the answer, its end-of-sequence token included"""
    proposals: list[list[list[int]]]
    """by place in the answer, the anchor's, then by width from 2 on"""
    chances: list[list[list[float]]] = []
    """that the drafter gave them, in the same order; empty where it does not say"""


class Recording(msgspec.Struct, frozen=True):
    """Of one bundle."""

    block: int
    exact_width: int
    multiple: int
    widest: int
    prices: Prices
    answers: list[Answer]


def record(session: Session, suites: Sequence[Suite], most: int, rounds: int) -> Recording:
    """Answers of at most `most` tokens to every prompt of `suites`, and prices that are each of `rounds` calls."""
    target, drafter = session.engines.target, session.engines.drafter
    tokens = [5 + token % 300 for token in range(min(POSITION, target.context - drafter.block))]
    fill(session, tokens)
    prices = measure_prices(session, tokens, rounds)
    answers = [_answer(session, suite.name, prompt, most) for suite in suites for prompt in suite.prompts]
    return Recording(
        drafter.block,
        target.min_verify_rows,
        target.row_multiple,
        min(target.max_rows, drafter.max_rows),
        prices,
        answers,
    )


def save(recording: Recording, path: Path) -> None:
    """Into a new file."""
    path.write_bytes(msgspec.json.encode(recording))


def read(path: Path) -> Recording:
    """What `save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Recording)


def _answer(session: Session, suite: str, prompt: str, most: int) -> Answer:
    target, drafter = session.engines.target, session.engines.drafter
    ids, eos = session.encode(prompt), frozenset(session.manifest.text.eos_ids)
    most = max(min(most, target.context - len(ids) - 2 * drafter.block), 1)
    tokens = [Cycles(session.engines, Request(ids), FixedWidth(drafter.block), Recorder(drafter.block)).prefill()]
    proposals, chances, length = list[list[list[int]]](), list[list[list[float]]](), most
    while len(tokens) < length + drafter.block:
        position = len(ids) + len(tokens) - 1
        if len(tokens) < length and tokens[-1] in eos:
            length = len(tokens)
        if len(tokens) < length:
            drafts = [_draft(drafter, tokens[-1], position, width) for width in range(2, drafter.block + 1)]
            proposals.append([proposed for proposed, _ in drafts])
            if drafter.reports_confidence:
                chances.append([said for _, said in drafts])
        tokens.append(target.verify([tokens[-1]], position)[0])
        drafter.inject(target.taps, 1, position)
    return Answer(suite, ids, tokens, length, proposals, chances)


def _draft(drafter: DrafterEngine, anchor: int, position: int, width: int) -> tuple[list[int], list[float]]:
    proposed = list(drafter.draft(anchor, position, width))
    return proposed, [drafter.confidence(slot) for slot in range(width - 1)] if drafter.reports_confidence else []
