"""CPU milliseconds of every call by role and width, and what the host takes of a cycle."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import quantiles
from time import thread_time
from typing import Any

from dflash_compile.runtime import load
from dflash_compile.runtime.cycles import chunk_rows
from dflash_compile.runtime.loop import plan_limits, run
from dflash_compile.runtime.policy.controller import AdaptiveWidth
from dflash_compile.runtime.request import Request
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Recorder

WAYS: dict[str, dict[str, Any]] = {
    "plain": {"draft": False},
    "look-ups": {"draft": False, "lookup": True},
    "drafts": {"lookup": False},
    "both": {},
}
PROMPT = "Tell a story of a dog and a cat. Tell it again."
_INJECTED = (1, 2, 4)


def fill(session: Session, tokens: Sequence[int]) -> float:
    """Fill both caches with a prompt; milliseconds."""
    target, drafter = session.engines.target, session.engines.drafter
    began, start = thread_time(), 0
    for rows in chunk_rows(len(tokens), min(target.max_rows, drafter.max_rows), target.min_verify_rows):
        target.prefill(tokens[start : start + rows], start)
        drafter.inject(target.taps, rows, start)
        start += rows
    return round(1000 * (thread_time() - began), 1)


def calls(session: Session, tokens: Sequence[int]) -> Iterator[tuple[str, Callable[[], object]]]:
    """One call of every role and width, by name, behind `tokens`, which the caches hold."""
    target, drafter = session.engines.target, session.engines.drafter
    position = len(tokens)
    widths = range(2, drafter.block + 1)
    for width in [target.min_verify_rows, *(width for width in widths if width != target.min_verify_rows)]:
        yield f"verify {width}", lambda width=width: target.verify(tokens[:width], position)
    for width in widths:
        yield f"draft {width}", lambda width=width: drafter.draft(7, position, width)
    for rows in _INJECTED:
        yield f"inject {rows}", lambda rows=rows: drafter.inject(target.taps, rows, position)


def interleave(variants: Sequence[dict[str, Callable[[], object]]], rounds: int) -> list[dict[str, float]]:
    """Milliseconds of every call of every variant, of the 30th percentile: work of others only ever adds."""
    taken: list[dict[str, list[float]]] = [{name: [] for name in variant} for variant in variants]
    pairs = list(zip(variants, taken, strict=True))
    for turn in range(rounds + 2):
        for name in variants[0]:
            for variant, seconds in pairs[:: 1 if turn % 2 else -1]:
                began = thread_time()
                variant[name]()
                if turn >= 2:  # the first calls of a width bind and allocate
                    seconds[name].append(thread_time() - began)
    return [{name: round(1000 * quantiles(values, n=10)[2], 3) for name, values in one.items()} for one in taken]


def host(
    session: Session, tokens: int, controller: type[AdaptiveWidth] = AdaptiveWidth, **way: Any
) -> dict[str, float]:
    """Microseconds a cycle outside the engines, and what the cycles gave."""
    engines, request = session.engines, Request(session.encode(PROMPT), tokens, **way)
    limits = plan_limits(request, engines.target, session.manifest.text.eos_ids)
    decides = controller.for_engines(engines, drafter=request.draft)
    for _ in range(2):  # widths seen for the first time bind
        decides.begin()
        record = Recorder(engines.drafter.block, thread_time)
        answer = run(engines, request, limits, decides, record)
        next(answer)
        prompt = record.snapshot()
        for _ in answer:
            pass
    whole = record.snapshot()
    return {
        "host_us": round(1e6 * (whole.host_seconds - prompt.host_seconds) / whole.cycles, 1),
        "tokens_a_cycle": round((whole.tokens - 1) / whole.cycles, 2),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `calls`."""
    parser.add_argument("--position", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=128)


def measure(given: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """A row for each bundle; False: nothing can be wrong."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(load(bundle, threads=1)) for bundle in given.bundles]
        tokens = [5 + token % 300 for token in range(given.position)]
        prompts = [fill(session, tokens) for session in sessions]
        taken = interleave([dict(calls(session, tokens)) for session in sessions], given.rounds)
        return [
            {
                "bundle": str(bundle),
                "ms": {"prompt": prompt, **one},
                "host": {name: host(session, given.tokens, **way) for name, way in WAYS.items() if given.tokens},
            }
            for bundle, session, prompt, one in zip(given.bundles, sessions, prompts, taken, strict=True)
        ], False
