"""The benchmark's figures for people, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .records import BenchRecord, ContextRecord, SpreadRecord, SuiteRecord

if TYPE_CHECKING:
    from rich.table import Table


def tables(record: BenchRecord) -> list[Any]:
    """What rich prints, in order."""
    parts: list[Any] = [
        suite_table(record.suites),
        "",
        acceptance_table(record.suites),
        "",
        role_table(record.suites),
        "",
        memory_table(record),
    ]
    if record.contexts:
        parts += ["", context_table(record.contexts), "", needed_table(record.contexts)]
    return [*parts, "", verdict(record)]


def verdict(record: BenchRecord) -> str:
    """What it comes to, in a sentence."""
    wrong = [
        *(suite.name for suite in record.suites if not suite.lossless),
        *(f"context {it.context}" for it in record.contexts if not it.lossless),
    ]
    if wrong:
        return f"NOT LOSSLESS: the sides differ in {', '.join(wrong)}."
    speeds = [suite.speedup for suite in record.suites]
    return (
        f"Lossless: all sides gave the same tokens. DFlash ran at {min(speeds):.2f} to {max(speeds):.2f} times the"
        f" speed of {record.settings.baseline_summary}."
    )


def suite_table(suites: Sequence[SuiteRecord]) -> Table:
    """A row for each suite; quartiles are of the speed-up of single answers, the worst is of the prompt that gained
    least.

    Times are to the first and the last token.
    """
    table = _table("suite", ["τ", "tok/s", "base", "speed-up", "quartiles", "worst", "first ms", "last ms", "same"])
    for suite in suites:
        speeds = (f"{suite.tokens_per_second:.1f}", f"{suite.baseline_tokens_per_second:.1f}")
        gains = (_times(suite.speedup), _range(suite.answer_speedup), _times(suite.worst_speedup))
        times = (f"{suite.ttft_ms:.0f}", f"{suite.latency_ms:.0f}")
        table.add_row(suite.name, f"{suite.tau:.2f}", *speeds, *gains, *times, "yes" if suite.lossless else "NO")
    return table


def acceptance_table(suites: Sequence[SuiteRecord]) -> Table:
    """Acceptance by position, how often the session chose to draft, and how many of its tokens it looked up instead."""
    most = max((len(suite.acceptance) for suite in suites), default=0)
    table = _table(
        "accepted at", [*(str(position) for position in range(1, most + 1)), "cycles drafted", "tokens looked up"]
    )
    for suite in suites:
        shares = [f"{share:.0%}" for share in suite.acceptance]
        table.add_row(
            suite.name, *shares, *[""] * (most - len(shares)), f"{suite.drafted:.0%}", f"{suite.looked_up:.0%}"
        )
    return table


def role_table(suites: Sequence[SuiteRecord]) -> Table:
    """Where the time of a token goes."""
    roles = ("inject", "draft", "verify", "decode", "host")
    table = _table("ms a token", [*roles, "host/cycle", "prompt"])
    for suite in suites:
        for name, side in suite.sides.items():
            spent = [f"{side.role_ms_per_token[role]:.2f}" if role in side.role_ms_per_token else "" for role in roles]
            prompt = sum(spread.median for spread in side.prompt_ms.values())
            table.add_row(f"{suite.name}, {name}", *spent, f"{side.host_ms_per_cycle:.3f}", f"{prompt:.0f} ms")
    return table


def memory_table(record: BenchRecord) -> Table:
    """Peak, caches and swap."""
    cache = record.bundle.cache
    reserved = (cache.target_bytes + cache.drafter_bytes) / 2**20
    table = _table("memory", ["peak RSS", "K/V", "a token", "used", "tokens", "faults", "swapped"])
    for suite in record.suites:
        memory = suite.memory
        sizes = (
            _mebi(memory.peak_rss_bytes),
            f"{reserved:.1f} MiB",
            f"{cache.bytes_per_token / 1024:.1f} KiB",
            _mebi(suite.kv_bytes),
        )
        faults = "?" if memory.major_faults is None else str(memory.major_faults)
        table.add_row(suite.name, *sizes, str(suite.longest), faults, _mebi(memory.swapped_bytes))
    return table


def context_table(contexts: Sequence[ContextRecord]) -> Table:
    """A row for each context length."""
    table = _table("context", ["prompt", "tok/s", "baseline", "speed-up", "first", "K/V used", "same"])
    for it in contexts:
        speeds = (
            f"{it.tokens_per_second.median:.1f}",
            f"{it.baseline_tokens_per_second.median:.1f}",
            f"{it.speedup:.2f}×",
        )
        table.add_row(
            str(it.context),
            str(it.prompt_tokens),
            *speeds,
            f"{it.ttft_ms:.0f} ms",
            _mebi(it.kv_bytes),
            "yes" if it.lossless else "NO",
        )
    return table


def needed_table(contexts: Sequence[ContextRecord]) -> Table:
    """The τ that each width needs for each speed-up, beside the τ it had; a dash where the block is too narrow for
    it.
    """
    speedups = next(([needed.speedup for needed in it.widths[0].needed] for it in contexts if it.widths), [])
    table = _table("τ needed at", ["block", "cycle", *(f"{speedup:.1f}×" for speedup in speedups), "measured τ"])
    for it in contexts:
        for width in it.widths:
            taus = [f"{needed.tau:.2f}" if needed.tau <= width.width else "–" for needed in width.needed]
            table.add_row(str(it.context), str(width.width), f"{width.cycle_ms:.1f} ms", *taus, f"{width.tau:.2f}")
    return table


def _table(first: str, others: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(first, box=None)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _range(spread: SpreadRecord | None) -> str:
    return "" if spread is None else f"{spread.lower:.2f}–{spread.upper:.2f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"


def _mebi(size: int | None) -> str:
    return "?" if size is None else f"{size / 2**20:.1f} MiB"
