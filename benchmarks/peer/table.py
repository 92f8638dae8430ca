"""The figures for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from dflash_compile.cli.bench.records import SpreadRecord

from .figures import Row, SuiteFigures
from .process import Engine, LeftOutError


def tables(suites: Sequence[SuiteFigures], engines: Sequence[Engine], left_out: Sequence[LeftOutError]) -> list[Any]:
    """What rich prints, in order."""
    parts: list[Any] = []
    for suite in suites:
        parts += [suite_table(suite), ""]
    parts.append(legend(engines))
    parts += [f"left out: {fault}" for fault in left_out]
    return parts


def suite_table(suite: SuiteFigures) -> Table:
    """A row for each engine, the fastest first; quartiles are over rounds."""
    table = Table(f"{suite.name}: {suite.prompts} prompts, {suite.new_tokens} tokens", box=None)
    for name in (
        "tok/s",
        "quartiles",
        "/ fastest plain",
        "quartiles",
        "CPU ms/token",
        "first ms",
        "equal",
        "leading",
        "τ",
        "drafted",
    ):
        table.add_column(name, justify="right")
    for row in sorted(suite.rows, key=lambda row: -row.tokens_per_second.median):
        table.add_row(*_cells(row, row.engine == suite.fastest_plain))
    return table


def legend(engines: Sequence[Engine]) -> Table:
    """What each engine is."""
    table = Table("engine", "weights", "version", box=None)
    for engine in engines:
        table.add_row(engine.name, engine.weights, engine.version)
    return table


def _cells(row: Row, fastest: bool) -> list[str]:
    return [
        row.engine + (" *" if fastest else ""),
        f"{row.tokens_per_second.median:.1f}",
        _range(row.tokens_per_second, 1),
        f"{row.against_plain.median:.2f}",
        _range(row.against_plain, 2),
        f"{row.cpu_ms_per_token.median:.1f}",
        f"{row.ttft_ms.median:.0f}",
        str(row.equal_answers),
        f"{row.equal_leading:.0%}",
        "" if row.tau is None else f"{row.tau:.2f}",
        "" if row.drafted is None else f"{row.drafted:.0%}",
    ]


def _range(spread: SpreadRecord, digits: int) -> str:
    return f"{spread.lower:.{digits}f}–{spread.upper:.{digits}f}"
