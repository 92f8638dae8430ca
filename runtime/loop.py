"""The greedy draft–verify loop: token ids in, token ids out. Knows nothing of text, files or back-ends.

With `drafter=None` the same verify calls run one token at a time: the baseline, and the reference that drafting must equal token for token.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter

from .acceptance import accept_greedy
from .engines import DrafterEngine, TargetEngine
from .errors import LengthError, UsageError
from .statistics import Finish, Recorder


@dataclass(frozen=True)
class Limits:
    """Where an answer ends."""

    tokens: int
    """the most it may have"""
    reason: Finish
    """what to call it when it has that many"""
    eos_ids: frozenset[int]

    def finish(self, token: int, count: int) -> Finish | None:
        """Why the answer ends with `token`, its `count`-th; None where it goes on."""
        if token in self.eos_ids:
            return "eos"
        return self.reason if count >= self.tokens else None


def plan_limits(prompt: int, target: TargetEngine, max_new_tokens: int | None, eos_ids: Sequence[int]) -> Limits:
    """The limits of an answer to `prompt` tokens, asked for at most `max_new_tokens`.

    The last token needs no row of its own, but every call needs `exact_width` rows: the cache allows context - prompt - exact_width + 2 tokens, and
    always the one that prefill chooses. Raises `LengthError` where the prompt alone does not fit, `UsageError` where nothing is asked.
    """
    if prompt < 1:
        raise UsageError("the prompt is empty", why="a model continues text: it needs at least one token", fix="give a prompt")
    if max_new_tokens is not None and max_new_tokens < 1:
        raise UsageError(f"max_new_tokens={max_new_tokens}", fix="ask for at least one token")
    if prompt > target.context:
        raise LengthError(
            f"the prompt has {prompt} tokens; the bundle holds {target.context}, prompt and answer together",
            fix="shorten it, or build the bundle with a larger --max-context",
        )
    room = max(target.context - prompt - target.exact_width + 2, 1)
    if max_new_tokens is not None and max_new_tokens <= room:
        return Limits(max_new_tokens, "max_new_tokens", frozenset(eos_ids))
    return Limits(room, "length", frozenset(eos_ids))


def chunk_rows(rows: int, widest: int, narrowest: int) -> list[int]:
    """Sizes of the calls that take in a prompt of `rows`, in order.

    None is narrower than `narrowest` unless the whole prompt is: a last chunk that would be takes rows from the one before.
    """
    sizes = [widest] * (rows // widest) + ([rows % widest] if rows % widest else [])
    missing = narrowest - sizes[-1]
    if len(sizes) > 1 and missing > 0:
        sizes[-2:] = [sizes[-2] - missing, narrowest]
    return sizes


def run(target: TargetEngine, drafter: DrafterEngine | None, prompt: Sequence[int], limits: Limits, block: int, record: Recorder) -> Generator[int, None, None]:
    """Token ids of the answer, as they are known; `block` is the widest call of a cycle.

    What the answer did is in `record`, which is up to date at every yield.
    """
    started = perf_counter()
    fresh: list[int] = [_prefill(target, drafter, prompt, record)]
    record.prefill_seconds = perf_counter() - started
    position, uninjected = len(prompt), 0
    while True:
        for token in fresh:
            record.tokens += 1
            record.finish = limits.finish(token, record.tokens)
            yield token
            if record.finish:
                return
        started = perf_counter()
        fresh = _cycle(target, drafter, fresh[-1], position, uninjected, block, record)
        uninjected = len(fresh)
        position += uninjected
        record.decode_seconds += perf_counter() - started


def _prefill(target: TargetEngine, drafter: DrafterEngine | None, prompt: Sequence[int], record: Recorder) -> int:
    """The prompt into both caches; the first token of the answer."""
    record.prompt_tokens = len(prompt)
    widest = target.widest if drafter is None else min(target.widest, drafter.widest)
    position = choice = 0
    for rows in chunk_rows(len(prompt), widest, target.exact_width):
        now = perf_counter()
        choice = target.prefill(prompt[position : position + rows], position)
        now = record.spent("prefill", now)
        if drafter is not None:
            drafter.inject(target.taps, rows, position)
            record.spent("inject", now)
        position += rows
    return choice


def _cycle(target: TargetEngine, drafter: DrafterEngine | None, anchor: int, position: int, uninjected: int, block: int, record: Recorder) -> list[int]:
    """Tokens that follow `anchor`, at least one; as many cache rows as tokens are committed.

    The last cycle's taps are injected here, `uninjected` rows of them: when they are needed, and never for an answer's last block.
    """
    now = perf_counter()
    width = min(block, target.context - position)
    proposals: Sequence[int] = ()
    if drafter is not None and width >= 2:
        if uninjected:
            drafter.inject(target.taps, uninjected, position - uninjected)
            now = record.spent("inject", now)
        proposals = drafter.draft(anchor, position, width)
        now = record.spent("draft", now)
    choices = target.verify([anchor, *proposals], position)
    record.spent("verify" if proposals else "decode", now)
    outcome = accept_greedy(proposals, choices)
    record.cycle(len(proposals), outcome.accepted)
    return [*proposals[: outcome.accepted], outcome.bonus]
