"""Speed against context length, and what a drafter would have to reach at each width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.session import Session

from .answers import Answers, interleave, warm_up
from .records import ContextRecord, NeededRecord, WidthRecord
from .run import Run
from .spread import quartiles
from .totals import ratio
from .variants import BASELINE, DFLASH, SessionVariant, Variant, widths

SPEEDUPS = (1.0, 1.2, 1.5, 1.9)
SHORTEST = 16
"""tokens: less would cut the chat template itself"""
REQUEST = "Write down everything above again in your own words, as a long text with many details."


def read_lengths(words: str) -> list[int]:
    """`128,512` as numbers, sorted, each once. Raises `UsageError`."""
    try:
        lengths = sorted({int(word) for word in words.split(",")})
    except ValueError as error:
        raise UsageError(
            f"context lengths cannot be {words!r}", fix="give whole numbers with commas between them: 128,512,1024"
        ) from error
    if lengths[0] < SHORTEST:
        raise UsageError(
            f"a context of {lengths[0]} tokens",
            why=f"the shortest that can be measured has {SHORTEST}",
            fix="ask for longer ones",
        )
    return lengths


def prompt_length(asked: int, context: int, max_new_tokens: int, block: int) -> int:
    """Tokens of the prompt for a context of `asked`: fewer where the answer, and a whole block behind it, would not fit
    the bundle's `context`.

    Raises `UsageError` where even the shortest does not fit, or `asked` is more than the bundle holds.
    """
    if asked > context:
        raise UsageError(
            f"a context of {asked} tokens",
            why=f"the bundle holds {context}",
            fix="ask for less, or build with a larger --max-context",
        )
    room = context - max_new_tokens - block
    if room < SHORTEST:
        raise UsageError(
            f"--max-new-tokens {max_new_tokens} leaves no room for a prompt",
            why=f"the bundle holds {context} tokens, prompt and answer together",
            fix="ask for fewer, or build with a larger --max-context",
        )
    return min(asked, room)


def make_prompt(encode: Callable[[str], list[int]], texts: Sequence[str], length: int) -> list[int]:
    """Exactly `length` ids of a chat: `texts` over and over and a request; what is too much is cut out of the middle,
    so the template stays whole.
    """
    repeated = 1
    while len(ids := encode("\n\n".join([*list(texts) * repeated, REQUEST]))) < length:
        repeated *= 2
    return [*ids[: length // 2], *ids[len(ids) - (length - length // 2) :]]


def measure_context(
    session: Session,
    baseline: Variant,
    asked: int,
    prompt: Sequence[int],
    max_new_tokens: int,
    repeats: int,
    kv_bytes_per_token: int,
    tick: Callable[[], None],
) -> ContextRecord:
    """DFlash, every width and the baseline by turns on `prompt`, after a warm-up of all."""
    fixed = {_name(width): SessionVariant(session, block=width) for width in widths(session.manifest.pairing.block)}
    variants: dict[str, Variant] = {DFLASH: SessionVariant(session), **fixed, BASELINE: baseline}
    tick()
    warm_up(variants, prompt)
    return context_record(
        asked,
        widths(session.manifest.pairing.block),
        interleave(variants, prompt, max_new_tokens, repeats, tick),
        kv_bytes_per_token,
    )


def turns(block: int, repeats: int) -> int:
    """How often `measure_context` calls its `tick`."""
    return 1 + repeats * (2 + len(widths(block)))


def context_record(asked: int, measured: Sequence[int], answers: Answers, kv_bytes_per_token: int) -> ContextRecord:
    """The figures, from the answers of `dflash`, `baseline` and `block W` for every width W in `measured`."""
    drafted, plain = answers.runs[DFLASH], answers.runs[BASELINE]
    token_ms = median(ratio(1000 * run.decode_seconds, run.decoded) for run in plain)
    one = plain[0]
    return ContextRecord(
        context=asked,
        prompt_tokens=one.statistics.prompt_tokens,
        tokens=len(one.tokens),
        lossless=answers.identical,
        tokens_per_second=quartiles(ratio(run.decoded, run.decode_seconds) for run in drafted),
        baseline_tokens_per_second=quartiles(ratio(run.decoded, run.decode_seconds) for run in plain),
        speedup=ratio(median(run.decode_seconds for run in plain), median(run.decode_seconds for run in drafted)),
        ttft_ms=1000 * median(run.first_seconds for run in drafted),
        baseline_ttft_ms=1000 * median(run.first_seconds for run in plain),
        baseline_token_ms=token_ms,
        kv_bytes=(one.statistics.prompt_tokens + len(one.tokens)) * kv_bytes_per_token,
        widths=[
            _width(width, answers.runs[_name(width)], token_ms)
            for width in measured
            if answers.runs[_name(width)][0].statistics.drafted
        ],
    )


def _name(width: int) -> str:
    return f"block {width}"


def _width(width: int, runs: Sequence[Run], token_ms: float) -> WidthRecord:
    roles = {role: median(cycle_ms(run)[role] for run in runs) for role in cycle_ms(runs[0])}
    cycle = sum(roles.values())
    return WidthRecord(
        width=width,
        cycle_ms=cycle,
        role_ms=roles,
        tau=runs[0].statistics.tau,
        tokens_per_second=median(ratio(run.decoded, run.decode_seconds) for run in runs),
        needed=[NeededRecord(speedup=speedup, tau=ratio(speedup * cycle, token_ms)) for speedup in SPEEDUPS],
    )


def cycle_ms(run: Run) -> dict[str, float]:
    """A drafted cycle by role.

    The first cycle finds the prompt injected already, so an answer has one inject fewer than cycles.
    """
    cycles = run.statistics.drafted
    return {
        "inject": ratio(1000 * run.seconds("inject"), cycles - 1),
        "draft": ratio(1000 * run.seconds("draft"), cycles),
        "verify": ratio(1000 * run.seconds("verify"), cycles),
        "host": ratio(1000 * run.host_seconds, run.statistics.cycles),
    }
