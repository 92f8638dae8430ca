"""The greedy draft–verify loop: token ids in, token ids out. Knows nothing of text, files or back-ends.

With no drafter and no look-up the same verify calls run one token at a time: the baseline, and the reference that all
else must equal token for token.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .cycles import Cycles
from .embeds import Span
from .engines import CycleEngine, DrafterEngine, TargetEngine
from .errors import LengthError, UsageError
from .policy.controller import Controller
from .policy.prompt_lookup import Lookup
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

    The last token needs no row of its own, but every call needs `exact_width` rows: the cache allows context - prompt -
    exact_width + 2 tokens, and always the one that prefill chooses. Raises `LengthError` where the prompt alone does
    not fit, `UsageError` where nothing is asked.
    """
    if prompt < 1:
        raise UsageError(
            "the prompt is empty", why="a model continues text: it needs at least one token", fix="give a prompt"
        )
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


def run(
    target: TargetEngine,
    drafter: DrafterEngine | None,
    prompt: Sequence[int],
    limits: Limits,
    controller: Controller,
    record: Recorder,
    cycle: CycleEngine | None = None,
    lookup: Lookup | None = None,
    embeds: Sequence[Span] = (),
) -> Generator[int, None, None]:
    """Token ids of the answer, as they are known; `controller` chooses each cycle.

    `cycle` does those that draft at one of its widths, if given; `lookup`, a new one, guesses where the drafter does
    not; `embeds` take the place of embedded tokens of the prompt. What the answer did is in `record`, which is up to
    date at every yield.
    """
    started = record.clock()
    if cycle is not None:
        cycle.begin(len(prompt) + limits.tokens - 1, limits.eos_ids)  # an answer's last token needs no row
    cycles = Cycles(target, drafter, controller, record, cycle, lookup)
    fresh: list[int] = [cycles.prefill(prompt, embeds)]
    record.prefill_seconds = record.clock() - started
    while True:
        for token in fresh:
            record.token()
            record.finish = limits.finish(token, record.tokens)
            yield token
            if record.finish:
                return
        started = record.clock()
        fresh = cycles.next(fresh[-1])
        record.decode_seconds += record.clock() - started
