"""A median with its quartiles."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import quantiles

from .records import SpreadRecord


def spread(values: Iterable[float]) -> SpreadRecord | None:
    """As `quartiles`; None where there are no values."""
    known = list(values)
    return quartiles(known) if known else None


def quartiles(values: Iterable[float]) -> SpreadRecord:
    """Quartiles of `values`, at least one, both ends included (the linear method, numpy's default)."""
    known = list(values)
    if len(known) == 1:
        return SpreadRecord(lower=known[0], median=known[0], upper=known[0])
    lower, middle, upper = quantiles(known, n=4, method="inclusive")
    return SpreadRecord(lower=lower, median=middle, upper=upper)
