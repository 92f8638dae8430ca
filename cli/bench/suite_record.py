"""The figures of one suite, from all its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from .answers import Answers
from .records import MemoryRecord, SideRecord, SuiteRecord
from .run import ROLES, Run
from .spread import quartiles, spread
from .totals import Totals, ratio
from .variants import BASELINE, BLOCKS, DFLASH


def suite_record(name: str, results: Sequence[Answers], kv_bytes_per_token: int, memory: MemoryRecord) -> SuiteRecord:
    """`results` holds the answers to every prompt, at least one, in order."""
    by_answer = [answers.totals for answers in results]
    total = sum(by_answer, start=Totals())
    chosen = [answers.typical(DFLASH).statistics for answers in results]
    first = [answers.runs[DFLASH] for answers in results]
    looked_up = ratio(sum(run.looked_up_accepted for run in chosen), sum(run.tokens - 1 for run in chosen))
    longest = max(run.statistics.prompt_tokens + len(run.tokens) for runs in first for run in runs)
    differing = [number for number, answers in enumerate(results) if not answers.identical]
    return SuiteRecord(
        name=name,
        prompts=len(results),
        tokens=total.tokens,
        lossless=not differing,
        differing=differing,
        tau=total.tau,
        acceptance=acceptance([answers.runs[BLOCKS][0] for answers in results]),
        drafted=ratio(sum(run.drafted for run in chosen), sum(run.cycles for run in chosen)),
        looked_up=looked_up,
        tokens_per_second=total.tokens_per_second,
        baseline_tokens_per_second=total.baseline_tokens_per_second,
        speedup=total.speedup,
        answer_speedup=spread(
            plain.decode_seconds / drafted.decode_seconds
            for answers in results
            for plain, drafted in zip(answers.runs[BASELINE], answers.runs[DFLASH], strict=True)
            if drafted.decode_seconds > 0
        ),
        worst_speedup=min((totals.speedup for totals in by_answer if totals.speedup > 0), default=None),
        ttft_ms=1000 * median(run.first_seconds for runs in first for run in runs),
        latency_ms=1000 * median(run.latency_seconds for runs in first for run in runs),
        longest=longest,
        kv_bytes=longest * kv_bytes_per_token,
        memory=memory,
        sides={
            side: side_record(
                [answers.runs[side] for answers in results], [answers.typical(side) for answers in results]
            )
            for side in results[0].runs
        },
    )


def acceptance(runs: Sequence[Run]) -> list[float]:
    """Share of cycles that accepted the proposal at each position, of those that offered one: what came before must
    have been accepted too.
    """
    offered = [sum(column) for column in zip(*(run.statistics.offered_at for run in runs), strict=True)]
    accepted = [sum(column) for column in zip(*(run.statistics.accepted_at for run in runs), strict=True)]
    return [ratio(taken, asked) for taken, asked in zip(accepted, offered, strict=True) if asked]


def side_record(repetitions: Sequence[Sequence[Run]], typical: Sequence[Run]) -> SideRecord:
    """One side: all its runs by prompt, and the typical run of every prompt."""
    runs = [run for several in repetitions for run in several]
    decoded = sum(run.decoded for run in typical)
    seconds = sum(median(run.decode_seconds for run in several) for several in repetitions)
    return SideRecord(
        tokens_per_second=ratio(decoded, seconds),
        answer_tokens_per_second=spread(
            run.decoded / run.decode_seconds for run in runs if run.decoded and run.decode_seconds > 0
        ),
        ttft_ms=quartiles(1000 * run.first_seconds for run in runs),
        latency_ms=quartiles(1000 * run.latency_seconds for run in runs),
        prompt_ms={role: quartiles(1000 * run.prompt_seconds(role) for run in runs) for role in ("prefill", "inject")},
        role_ms_per_token={role: ratio(1000 * seconds, decoded) for role, seconds in role_seconds(typical).items()},
        host_ms_per_cycle=ratio(
            1000 * sum(run.host_seconds for run in typical), sum(run.statistics.cycles for run in typical)
        ),
    )


def role_seconds(runs: Sequence[Run]) -> Mapping[str, float]:
    """Seconds of decoding by role, and on the host; roles that never ran are left out."""
    spent: dict[str, float] = {role: sum(run.seconds(role) for run in runs) for role in ROLES}
    spent["host"] = sum(run.host_seconds for run in runs)
    return {role: seconds for role, seconds in spent.items() if seconds > 0}
