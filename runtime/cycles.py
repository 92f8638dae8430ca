"""The cycles of one answer: what is guessed, verified and committed, and what the drafter has still to be shown."""

from __future__ import annotations

from collections.abc import Sequence

from .acceptance import accept_greedy, agreement
from .embeds import within
from .engines import CycleEngine, DrafterEngine, Engines
from .policy.controller import PLAIN, Controller, CyclePlan
from .policy.prompt_lookup import PromptLookup
from .request import Request
from .statistics import Recorder


def chunk_rows(rows: int, widest: int, narrowest: int) -> list[int]:
    """Sizes of the calls that take in a prompt of `rows`, in order.

    None is narrower than `narrowest` unless the whole prompt is: a last chunk that would be takes rows from the one
    before.
    """
    sizes = [widest] * (rows // widest) + ([rows % widest] if rows % widest else [])
    missing = narrowest - sizes[-1]
    if len(sizes) > 1 and missing > 0:
        sizes[-2:] = [sizes[-2] - missing, narrowest]
    return sizes


class Cycles:
    """Where an answer is, and how many committed rows the drafter has not seen yet."""

    def __init__(self, engines: Engines, request: Request, controller: Controller, record: Recorder) -> None:
        self.target, self.cycle = engines.target, engines.cycle
        self.drafter = engines.drafter if request.draft else None
        self.request, self.controller, self.record = request, controller, record
        looks_up = request.looks_up(device_cycles=engines.cycle is not None)
        self.lookup = PromptLookup(engines.drafter.block - 1) if looks_up else None
        self.position = 0
        self.pending_rows = 0

    def prefill(self) -> int:
        """The prompt, with given rows in place of its tokens, into both caches; the first token of the answer."""
        target, drafter, record, prompt = self.target, self.drafter, self.record, self.request.prompt_ids
        record.prompt_tokens = len(prompt)
        widest = target.max_rows if drafter is None else min(target.max_rows, drafter.max_rows)
        choice = 0
        for rows in chunk_rows(len(prompt), widest, target.min_verify_rows):
            now = record.clock()
            embeds = within(self.request.embeds, self.position, rows)
            choice = target.prefill(prompt[self.position : self.position + rows], self.position, embeds)
            self.position += rows
            began, now = now, record.spent("prefill", now)
            self.controller.prefilled(rows, now - began)
            if drafter is not None:
                drafter.inject(target.taps, rows, self.position - rows)
                record.spent("inject", now)
        if self.lookup is not None:
            self.lookup.extend([*prompt, choice])
        return choice

    def next(self, anchor: int) -> list[int]:
        """Tokens that follow `anchor`, at least one; as many cache rows as tokens are committed."""
        began = self.record.clock()
        lookup, room = self.lookup, self.target.fitting(self.position)
        match, guesses = (0, []) if lookup is None else (lookup.match(), lookup.guess())
        plan = self._plan(room, match)
        if plan.drafted and self.drafter is not None and self.cycle is not None and plan.width in self.cycle.widths:
            tokens = self._on_device(self.drafter, self.cycle, plan, anchor, began)
        else:
            tokens = self._on_host(plan, anchor, guesses, began)
        if lookup is not None:
            lookup.extend(tokens)
            if match:
                self.controller.note_lookup(match, len(tokens), agreement(guesses, tokens))
        return tokens

    def _plan(self, room: int, match: int) -> CyclePlan:
        if self.drafter is None and self.lookup is None:
            return CyclePlan(PLAIN, drafted=False)
        return self.controller.plan(room if self.drafter is None else min(self.drafter.block, room), match)

    def _on_host(self, plan: CyclePlan, anchor: int, guesses: Sequence[int], began: float) -> list[int]:
        """A cycle in calls of its own: guess, verify, commit what stands."""
        if plan.drafted and self.drafter is not None:
            proposals = self._draft(self.drafter, anchor, plan.width, began)
            if self.drafter.reports_confidence:
                proposals = proposals[: self.controller.choose_verify_rows(plan, self.drafter.confidence) - 1]
        else:
            # Rows that make a narrow call exact are computed anyway: a guess in them costs nothing.
            proposals = guesses[: self.target.padded(plan.width) - 1]
            if self.drafter is not None and not self.target.room(self.pending_rows, 1 + len(proposals)):
                self._inject_pending(self.drafter, began)
        now = self.record.clock()
        choices = self.target.verify([anchor, *proposals], self.position, self.pending_rows)
        ended = self.record.spent("verify" if plan.width > PLAIN else "decode", now)
        outcome = accept_greedy(proposals, choices)
        self.record.cycle(plan.drafted, len(proposals), outcome.accepted)
        self.position += outcome.accepted + 1
        if self.drafter is not None:
            self.pending_rows += outcome.accepted + 1
        self.controller.observe(plan, outcome.accepted, ended - began, ended - now)
        return [*proposals[: outcome.accepted], outcome.bonus]

    def _on_device(
        self, drafter: DrafterEngine, cycle: CycleEngine, plan: CyclePlan, anchor: int, began: float
    ) -> list[int]:
        """A cycle by the device alone, which injects what it commits."""
        now = self._inject_pending(drafter, began)
        done = cycle.run(anchor, self.position, plan.width)
        waited = self.record.spent("verify", now) - now
        accepted = len(done.tokens) - 1
        self.record.cycle(True, done.width - 1, accepted)
        self.position += accepted + 1
        seconds = waited if done.seconds is None else done.seconds
        self.controller.observe(plan._replace(width=done.width), accepted, now - began + seconds, seconds)
        return list(done.tokens)

    def _draft(self, drafter: DrafterEngine, anchor: int, width: int, now: float) -> Sequence[int]:
        """`width - 1` proposals of the drafter, which sees every committed row."""
        now = self._inject_pending(drafter, now)
        proposals = drafter.draft(anchor, self.position, width)
        self.record.spent("draft", now)
        return proposals

    def _inject_pending(self, drafter: DrafterEngine, now: float) -> float:
        """Show the drafter the committed rows it has not seen; returns the time, in seconds of the record's clock.

        Done when it is about to draft, or when no more of their taps can be kept: cycles without it cost it next to
        nothing, and an answer's last block nothing at all.
        """
        if not self.pending_rows:
            return now
        drafter.inject(self.target.taps, self.pending_rows, self.position - self.pending_rows)
        self.pending_rows = 0
        return self.record.spent("inject", now)
