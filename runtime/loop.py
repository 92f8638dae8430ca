"""The draft–verify loop: token ids in, token ids out. Knows nothing of text, files or back-ends.

With no drafter and no look-up the same verify calls run one token at a time: the baseline, and the reference that all
else must equal token for token.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

from .cycles import Cycles
from .engines import Engines, TargetEngine
from .errors import LengthError
from .policy.controller import Controller
from .request import Request
from .sampling.sampler import Sampler
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


def plan_limits(request: Request, target: TargetEngine, eos_ids: Sequence[int]) -> Limits:
    """The limits of the answer to `request`.

    The last token needs no row of its own, but every call needs `min_verify_rows` rows: the cache allows context -
    prompt - min_verify_rows + 2 tokens, and always the one that prefill chooses. Raises `LengthError` where the prompt
    alone does not fit.
    """
    prompt_tokens = len(request.prompt_ids)
    if prompt_tokens > target.context:
        raise LengthError(
            f"the prompt has {prompt_tokens} tokens; the bundle holds {target.context}, prompt and answer together",
            fix="shorten it, or build with more --max-context, as far as both models were made for it",
        )
    room = max(target.context - prompt_tokens - target.min_verify_rows + 2, 1)
    if request.max_new_tokens is not None and request.max_new_tokens <= room:
        return Limits(request.max_new_tokens, "max_new_tokens", frozenset(eos_ids))
    return Limits(room, "length", frozenset(eos_ids))


def run(
    engines: Engines, request: Request, limits: Limits, controller: Controller, record: Recorder
) -> Generator[int, None, None]:
    """Token ids of the answer to `request`, as they are known; `controller` chooses each cycle.

    What the answer did is in `record`, which is up to date at every yield.
    """
    started = record.clock()
    if engines.cycle is not None:  # an answer's last token needs no row
        engines.cycle.begin(len(request.prompt_ids) + limits.tokens - 1, limits.eos_ids)
    sampler = None
    if not request.sampling.plain:
        sampler = Sampler(request.sampling, request.prompt_ids, sorted(limits.eos_ids), engines.target.vocab)
        record.seed = None if request.sampling.greedy else sampler.seed
    cycles = Cycles(engines, request, controller, record, sampler)
    fresh: list[int] = [cycles.prefill()]
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
