"""The greedy draft–verify loop: token ids in, token ids out. Knows nothing of text, files or back-ends.

With `drafter=None` the same verify calls run one token at a time: the baseline, and the reference that drafting must equal token for token.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter

from .acceptance import accept_greedy
from .controller import PLAIN, Controller
from .engines import CycleEngine, DrafterEngine, TargetEngine
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
    if max_new_tokens is not None and (not isinstance(max_new_tokens, int) or max_new_tokens < 1):
        raise UsageError(f"max_new_tokens={max_new_tokens!r}", fix="ask for a whole number of tokens, at least one")
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


def run(
    target: TargetEngine,
    drafter: DrafterEngine | None,
    prompt: Sequence[int],
    limits: Limits,
    controller: Controller,
    record: Recorder,
    cycle: CycleEngine | None = None,
) -> Generator[int, None, None]:
    """Token ids of the answer, as they are known; `controller` chooses how wide each cycle is, and `cycle` does those of its widths, if given.

    What the answer did is in `record`, which is up to date at every yield.
    """
    started = perf_counter()
    cycles = _Cycles(target, drafter, controller, record, cycle)
    fresh: list[int] = [cycles.prefill(prompt)]
    record.prefill_seconds = perf_counter() - started
    while True:
        for token in fresh:
            record.tokens += 1
            record.finish = limits.finish(token, record.tokens)
            yield token
            if record.finish:
                return
        started = perf_counter()
        fresh = cycles.next(fresh[-1])
        record.decode_seconds += perf_counter() - started


class _Cycles:
    """The cycles of one answer: where it is, and how many committed rows the drafter has not seen yet."""

    def __init__(self, target: TargetEngine, drafter: DrafterEngine | None, controller: Controller, record: Recorder, cycle: CycleEngine | None = None) -> None:
        self.target, self.drafter, self.controller, self.record, self.cycle = target, drafter, controller, record, cycle
        self.position = 0
        self.unseen = 0

    def prefill(self, prompt: Sequence[int]) -> int:
        """The prompt into both caches; the first token of the answer."""
        target, drafter, record = self.target, self.drafter, self.record
        record.prompt_tokens = len(prompt)
        widest = target.widest if drafter is None else min(target.widest, drafter.widest)
        choice = 0
        for rows in chunk_rows(len(prompt), widest, target.exact_width):
            now = perf_counter()
            choice = target.prefill(prompt[self.position : self.position + rows], self.position)
            self.position += rows
            now = record.spent("prefill", now)
            if drafter is not None:
                drafter.inject(target.taps, rows, self.position - rows)
                record.spent("inject", now)
        return choice

    def next(self, anchor: int) -> list[int]:
        """Tokens that follow `anchor`, at least one; as many cache rows as tokens are committed."""
        began = perf_counter()
        room = self.target.context - self.position
        width = PLAIN if self.drafter is None else self.controller.width(min(self.drafter.block, room))
        if self.drafter is not None and self.cycle is not None and width in self.cycle.widths:
            return self._on_device(self.drafter, self.cycle, anchor, width, began)
        proposals = self._draft(anchor, width, began)
        now = perf_counter()
        choices = self.target.verify([anchor, *proposals], self.position, self.unseen)
        now = self.record.spent("verify" if proposals else "decode", now)
        outcome = accept_greedy(proposals, choices)
        self.record.cycle(len(proposals), outcome.accepted)
        self.position += outcome.accepted + 1
        if self.drafter is not None:
            self.unseen += outcome.accepted + 1
            self.controller.observe(width, outcome.accepted, now - began)
        return [*proposals[: outcome.accepted], outcome.bonus]

    def _on_device(self, drafter: DrafterEngine, cycle: CycleEngine, anchor: int, width: int, began: float) -> list[int]:
        """A cycle by the device alone, which injects what it commits."""
        now = began
        if self.unseen:
            drafter.inject(self.target.taps, self.unseen, self.position - self.unseen)
            self.unseen = 0
            now = self.record.spent("inject", now)
        done = cycle.run(anchor, self.position, width)
        now = self.record.spent("verify", now)
        accepted = len(done.tokens) - 1
        self.record.cycle(done.width - 1, accepted)
        self.position += accepted + 1
        self.controller.observe(done.width, accepted, now - began)
        return list(done.tokens)

    def _draft(self, anchor: int, width: int, now: float) -> Sequence[int]:
        """`width - 1` proposals; none for a plain cycle.

        Committed rows are shown to the drafter when it is about to draft, or when no more of their taps can be kept: plain cycles cost it next
        to nothing, and an answer's last block nothing at all.
        """
        drafter = self.drafter
        if drafter is None:
            return ()
        if self.unseen and (width > PLAIN or not self.target.room(self.unseen, width)):
            drafter.inject(self.target.taps, self.unseen, self.position - self.unseen)
            self.unseen = 0
            now = self.record.spent("inject", now)
        if width == PLAIN:
            return ()
        proposals = drafter.draft(anchor, self.position, width)
        self.record.spent("draft", now)
        return proposals
