"""Calls that try a stateful engine, and the judgement of what it answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dflash_compile.export.dflash.v2 import UNCHOSEN
from dflash_compile.runtime.errors import BuildError

from .caches import CACHE
from .lower import Stateful
from .reference import Array, Reference, relative
from .roles import sizes

CACHE_FACTOR = 2.5
"""keys and values of a row are a few times smaller than the largest of them"""
ROUNDING_FACTOR = 3.0
"""Deep models have a row, that of the token which all others rest on, whose sums are in the thousands in some layers
and small ones after them: what float16 loses in between is a large part of what is left (13 % of a key of
SmolLM2-135M). No fixed bound holds for it, but the torch program with its values rounded loses as much; an engine,
whose sums have another order, may lose this many times that."""
_WIDE_SHARE = 1 / 64
"""of what rounding to float16 does to a row, that float32 may do to it: 2⁻¹³ of it, and room for a constant that is
stored in float16"""


@dataclass(frozen=True)
class ParityCheck:
    """Calls of one function, in order, from a state full of rubbish: forward, then back to where it began."""

    state: Array
    calls: tuple[Mapping[str, Array], ...]


def parity_check(stateful: Stateful) -> ParityCheck:
    """The same calls every time."""
    random, role = np.random.default_rng(0), stateful.role
    most = role.cache.length - role.rows
    positions = (0, min(role.rows, most), min(role.rows // 2, most))
    state = random.standard_normal(role.cache.sizes).astype(role.dtype)
    return ParityCheck(state, tuple(_feeds(stateful, position, random) for position in positions))


def _feeds(stateful: Stateful, position: int, random: np.random.Generator) -> dict[str, Array]:
    tables = [
        len(value)
        for name, value in stateful.program.state_dict.items()
        if name.endswith(("embed_tokens_weight", "p_embedding"))
    ]
    least = min(
        tables, default=2
    )  # a part without the embedding: every table that tokens are looked up in has their first two
    feeds: dict[str, Array] = {"position": np.array([position], np.int32)}
    for port in stateful.role.inputs:
        if port.name == "valid":
            feeds[port.name] = np.array([max(stateful.role.rows // 2, 1)], np.int32)
        elif port.name not in (CACHE, "position"):
            ids = port.dtype == "int32"
            feeds[port.name] = (
                random.integers(0, least, sizes(port)).astype(np.int32)
                if ids
                else random.standard_normal(sizes(port)).astype(port.dtype)
            )
    return feeds


def compare(
    stateful: Stateful,
    check: ParityCheck,
    reference: Reference,
    found: Sequence[tuple[Mapping[str, Array], Array]],
    tolerance: float,
    wide: Sequence[tuple[Mapping[str, Array], Array]] | None = None,
    wide_tolerance: float = 0.0,
) -> None:
    """`found` is what an engine gave to each call and its state after it. Raises `BuildError` where that is not what
    `reference` gives.

    Every call is judged by itself, from the state that the engine had before it. `tolerance` is a part of the largest
    number of an output; choices are right where no logit is further above theirs. The rows that a call wrote are judged
    one by one in every entry of the cache, by their norm, which may be off by `CACHE_FACTOR` times as much, in float16
    also by `ROUNDING_FACTOR` times what rounding does to that row; all others must stay as they were.

    `wide` is the same of an engine that computes in float32 what it should in float16, from the same states. It shows
    what the engine means, where no rounding hides a fault, and is held to `wide_tolerance` in the same way.
    """
    before = check.state
    for number, (feeds, given) in enumerate(zip(check.calls, found, strict=True)):
        reference.state = torch.from_numpy(before)
        rounding = reference.rounding(feeds) if stateful.role.dtype == "float16" else np.zeros(stateful.role.rows)
        wanted = *reference.run(feeds), reference.state.numpy()
        if wide is not None:
            _judge(
                stateful,
                feeds,
                before,
                wide[number],
                wanted,
                wide_tolerance,
                np.maximum(CACHE_FACTOR * wide_tolerance, _WIDE_SHARE * rounding),
            )
        _judge(
            stateful,
            feeds,
            before,
            given,
            wanted,
            tolerance,
            np.maximum(CACHE_FACTOR * tolerance, ROUNDING_FACTOR * rounding),
        )
        before = given[1]


def _judge(
    stateful: Stateful,
    feeds: Mapping[str, Array],
    before: Array,
    found: tuple[Mapping[str, Array], Array],
    wanted: tuple[Mapping[str, Array], Array | None, Array],
    tolerance: float,
    of_rows: Array,
) -> None:
    """One call: its results, and then every row that it wrote by a limit of its own in `of_rows` [S]."""
    name, (results, state), (right, scores, cache) = stateful.role.function, found, wanted
    for port in stateful.role.results:
        _refuse(f"{name}: {port.name}", _distance(results[port.name], right[port.name], scores), tolerance)
    apart = _rows_apart(stateful, feeds, before, state, cache)
    worst = int(np.argmax(apart / of_rows))
    _refuse(f"{name}: the cache after it", float(apart[worst]), float(of_rows[worst]))


def _rows_apart(stateful: Stateful, feeds: Mapping[str, Array], before: Array, found: Array, wanted: Array) -> Array:
    """How far off each row is that a call wrote, in the entry where it is furthest: [S]."""
    start, count = int(feeds["position"][0]), stateful.role.rows
    end = start + count
    if found.shape != wanted.shape or not (
        np.array_equal(found[:, :, :start], before[:, :, :start])
        and np.array_equal(found[:, :, end:], before[:, :, end:])
    ):
        return np.full(count, np.inf)
    return relative(found[:, :, start:end], wanted[:, :, start:end])


def _distance(found: Array, wanted: Array, scores: Array | None) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if found.dtype.kind == "f":
        apart = np.abs(found.astype(np.float32) - wanted.astype(np.float32)).max()
        return float(apart) / max(float(np.abs(wanted.astype(np.float32)).max()), 1e-3)
    if scores is None:
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    chosen = np.take_along_axis(scores, found.reshape(*scores.shape[:-1], 1).astype(np.int64), -1)[..., 0]
    real = np.abs(scores[scores > 0.5 * UNCHOSEN])  # a selector leaves most tokens without a score
    return float((scores.max(-1) - chosen).max()) / max(float(real.max()), 1e-3)


def _refuse(what: str, short: float, tolerance: float) -> None:
    if not short <= tolerance:
        raise BuildError(
            f"{what} is not what the traced graph gives",
            why=f"it is {short:.2%} of the largest number away, and rounding explains {tolerance:.2%}",
            fix="report this, with both config.json",
        )
