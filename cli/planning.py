"""An estimate of memory for people and for programs, and the options it is asked with."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import UsageError

from .machine import memory_total

if TYPE_CHECKING:
    from dflash_compile.compile.memory_estimate import ContextBytes, MemoryEstimate

_UNITS = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


@dataclass(frozen=True)
class Memory:
    """What there is to fit into."""

    bytes: int | None
    """None where the system does not tell"""
    source: str


def lengths(text: str) -> list[int]:
    """The contexts in a list like `8192,32768`. Raises `UsageError` for anything but positive numbers."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"contexts {text!r}", where="--context", fix="give lengths in tokens, such as 8192,32768")
    return [int(part) for part in parts]


def memory_bytes(text: str | None) -> Memory:
    """The memory in a size like `24GB`, or this machine's. Raises `UsageError` for what is no size."""
    if text is None:
        return Memory(memory_total(), "this machine")
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MGT]i?B)\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(
            f"a memory of {text!r}", where="--memory", fix="give a number with its unit, such as 24GB or 16GiB"
        )
    return Memory(int(float(match[1]) * _UNITS[match[2].upper()]), "--memory")


def as_document(backend: str, made: MemoryEstimate, memory: Memory) -> dict[str, Any]:
    """Everything, JSON-ready; sizes are in bytes, and null where the models do not reach a context."""
    outline = made.target
    totals = [
        {
            "precision": weights.precision,
            "context": needs.context,
            "bytes": made.total(weights, needs),
            "fits": _fits(made.total(weights, needs), memory),
        }
        for weights in made.weights
        for needs in made.needs
    ]
    return {
        "backend": backend,
        "target": {**asdict(outline.spec), "windows": list(outline.windows), "notes": list(outline.notes)},
        "drafter": None if made.drafter is None else asdict(made.drafter),
        "block": made.block,
        "experts": dict(made.experts),
        "roles": [asdict(role) for role in made.roles],
        "weights": [asdict(weights) for weights in made.weights],
        "contexts": [asdict(needs) for needs in made.needs],
        "buffers": made.buffers,
        "totals": totals,
        "memory": asdict(memory),
    }


def tables(made: MemoryEstimate, memory: Memory) -> list[Any]:
    """What rich prints, in order."""
    spec, windows = made.target.spec, [window for window in made.target.windows if window is not None]
    sliding = f", {len(windows)} with a window of {windows[0]}" if windows else ""
    head = (
        f"target {spec.name} ({spec.family}): {spec.layers} layers{sliding}, {spec.hidden} wide, {spec.kv_heads} key"
        f" heads of {spec.head_dim}"
    )
    lines = [f"{head}, vocabulary {spec.vocab}"]
    if made.drafter is not None:
        d = made.drafter
        lines.append(
            f"drafter {d.name} ({d.dialect}): {d.layers} layers, taps {', '.join(map(str, d.taps))}, blocks of"
            f" {made.block}"
        )
    lines += [f"experts at {name}: {form}" for name, form in made.experts.items()]
    lines += [f"note: {note}" for note in made.target.notes]
    where = memory.source if memory.bytes is None else f"{_gib(memory.bytes)} GiB ({memory.source})"
    verdict = (
        f"Totals count {_gib(made.buffers)} GiB of buffers and half a GiB for everything else; ✓ fits {where}, ✗ does"
        " not."
    )
    return [*lines, "", _roles(made), "", _weights(made), "", _needs(made), "", _totals(made, memory), "", verdict]


def _roles(made: MemoryEstimate) -> Any:
    table = _table("graph", ["engine", "rows"])
    for role in made.roles:
        table.add_row(role.role, role.engine, role.rows)
    return table


def _weights(made: MemoryEstimate) -> Any:
    table = _table("weights, GiB", ["target", "drafter"])
    for weights in made.weights:
        table.add_row(
            weights.precision, _gib(weights.target), _gib(weights.drafter) if made.drafter is not None else "–"
        )
    return table


def _needs(made: MemoryEstimate) -> Any:
    table = _table("caches, GiB", [str(needs.context) for needs in made.needs])
    table.add_row("target", *(_or_dash(needs.target_cache) for needs in made.needs))
    if made.drafter is not None:
        table.add_row("drafter", *(_or_dash(needs.drafter_cache) for needs in made.needs))
    table.add_row("both, without rings", *(_or_dash(needs.full_cache) for needs in made.needs))
    table.add_row("layers with rings", *(_reached(needs, str(needs.rings)) for needs in made.needs))
    table.add_row("rotary tables", *(_or_dash(needs.tables) for needs in made.needs))
    return table


def _totals(made: MemoryEstimate, memory: Memory) -> Any:
    table = _table("total, GiB", [str(needs.context) for needs in made.needs])
    for weights in made.weights:
        sizes = [made.total(weights, needs) for needs in made.needs]
        marks = {True: " ✓", False: " ✗", None: ""}
        table.add_row(weights.precision, *(f"{_or_dash(size)}{marks[_fits(size, memory)]}" for size in sizes))
    return table


def _table(first: str, columns: list[str]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _fits(size: int | None, memory: Memory) -> bool | None:
    return None if size is None or memory.bytes is None else size <= memory.bytes


def _reached(needs: ContextBytes, text: str) -> str:
    return "too long" if needs.target_cache is None else text


def _or_dash(size: int | None) -> str:
    return "too long" if size is None else _gib(size)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f}"
