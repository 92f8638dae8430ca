"""The cycles of one answer: what is guessed, verified and committed, and what is still to be injected."""

from __future__ import annotations

from collections.abc import Sequence

from .acceptance import accept_greedy, agreement
from .embeds import within
from .engines import CycleEngine, DrafterEngine, Engines
from .policy.controller import PLAIN, Controller, CyclePlan
from .policy.prompt_lookup import PromptLookup
from .request import Request
from .sampling.sampler import Sampler
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
    """Where an answer is, and how many committed rows are still to be injected."""

    def __init__(
        self,
        engines: Engines,
        request: Request,
        controller: Controller,
        record: Recorder,
        sampler: Sampler | None = None,
    ) -> None:
        """`sampler` chooses tokens from logits; without one they are the engine's own choices."""
        self.target, self.cycle = engines.target, engines.cycle
        self.drafter = engines.drafter if request.draft else None
        self.request, self.controller, self.record, self.sampler = request, controller, record, sampler
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
            started = record.clock()
            embeds = within(self.request.embeds, self.position, rows)
            choice = target.prefill(prompt[self.position : self.position + rows], self.position, embeds)
            self.position += rows
            prefilled = record.spent("prefill", started)
            self.controller.prefilled(rows, prefilled - started)
            if drafter is not None:
                drafter.inject(target.taps, rows, self.position - rows)
                record.spent("inject", prefilled)
        if self.sampler is not None:
            choice = self.sampler.draw(target.row_logits(0))
        if self.lookup is not None:
            self.lookup.extend([*prompt, choice])
        return choice

    def next(self, anchor: int) -> list[int]:
        """Tokens that follow `anchor`, at least one; as many cache rows as tokens are committed."""
        cycle_start = self.record.clock()
        lookup, room = self.lookup, self.target.fitting(self.position)
        match, guesses = (0, []) if lookup is None else (lookup.match(), lookup.guess())
        plan = self._plan(room, match)
        if self._device_can(plan) and self.drafter is not None and self.cycle is not None:
            tokens = self._on_device(self.drafter, self.cycle, plan, anchor, cycle_start)
        else:
            tokens = self._on_host(plan, anchor, guesses, cycle_start)
        if lookup is not None:
            lookup.extend(tokens)
            if match:
                self.controller.note_lookup(match, len(tokens), agreement(guesses, tokens))
        return tokens

    def _device_can(self, plan: CyclePlan) -> bool:
        """Whether the device does such a cycle by itself: it takes the largest logits, and draws nothing."""
        return plan.drafted and self.sampler is None and self.cycle is not None and plan.width in self.cycle.widths

    def _plan(self, room: int, match: int) -> CyclePlan:
        if self.drafter is None and self.lookup is None:
            return CyclePlan(PLAIN, drafted=False)
        return self.controller.plan(room if self.drafter is None else min(self.drafter.block, room), match)

    def _on_host(self, plan: CyclePlan, anchor: int, guesses: Sequence[int], cycle_start: float) -> list[int]:
        """A cycle in calls of its own: guess, verify, commit what is accepted."""
        if plan.drafted and self.drafter is not None:
            proposals = self._draft(self.drafter, anchor, plan.width, cycle_start)
            if self.drafter.reports_confidence:
                proposals = proposals[: self.controller.choose_verify_rows(plan, self.drafter.confidence) - 1]
        else:
            # Rows that make a narrow call exact are computed anyway: a guess in them costs nothing.
            proposals = guesses[: self.target.padded(plan.width) - 1]
            if self.drafter is not None and not self.target.room(self.pending_rows, 1 + len(proposals)):
                self._inject_pending(self.drafter, cycle_start)
        verify_start = self.record.clock()
        choices = self.target.verify([anchor, *proposals], self.position, self.pending_rows)
        verify_end = self.record.spent("verify" if plan.width > PLAIN else "decode", verify_start)
        if self.sampler is None:
            outcome = accept_greedy(proposals, choices)
            tokens = [*proposals[: outcome.accepted], outcome.bonus]
        else:
            tokens = self.sampler.accept(proposals, map(self.target.row_logits, range(len(choices))))
            verify_end = self.record.clock()
        accepted = len(tokens) - 1
        self.record.cycle(plan.drafted, len(proposals), accepted)
        self.position += accepted + 1
        if self.drafter is not None:
            self.pending_rows += accepted + 1
        self.controller.observe(plan, accepted, verify_end - cycle_start, verify_end - verify_start)
        return tokens

    def _on_device(
        self, drafter: DrafterEngine, cycle: CycleEngine, plan: CyclePlan, anchor: int, cycle_start: float
    ) -> list[int]:
        """A cycle by the device alone, which injects what it commits."""
        launched = self._inject_pending(drafter, cycle_start)
        done = cycle.run(anchor, self.position, plan.width)
        waited = self.record.spent("verify", launched) - launched
        accepted = len(done.tokens) - 1
        self.record.cycle(True, done.width - 1, accepted)
        self.position += accepted + 1
        seconds = waited if done.seconds is None else done.seconds
        self.controller.observe(plan._replace(width=done.width), accepted, launched - cycle_start + seconds, seconds)
        return list(done.tokens)

    def _draft(self, drafter: DrafterEngine, anchor: int, width: int, start: float) -> Sequence[int]:
        """`width - 1` proposals of the drafter, once every committed row is injected."""
        injected = self._inject_pending(drafter, start)
        proposals = drafter.draft(anchor, self.position, width)
        self.record.spent("draft", injected)
        return proposals

    def _inject_pending(self, drafter: DrafterEngine, start: float) -> float:
        """Inject the committed rows that the draft cache lacks, from `start` on; returns the time at the end, both in
        seconds of the record's clock.

        Done when it is about to draft, or when no more of their taps can be kept: cycles without it cost it next to
        nothing, and an answer's last block nothing at all.
        """
        if not self.pending_rows:
            return start
        drafter.inject(self.target.taps, self.pending_rows, self.position - self.pending_rows)
        self.pending_rows = 0
        return self.record.spent("inject", start)
