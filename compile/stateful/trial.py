"""Calls that try a stateful engine, and what the torch program behind it answers to the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dflash_compile.export.checkpoint import TensorSource
from dflash_compile.export.dflash_v2 import UNCHOSEN
from dflash_compile.export.graph import Owner
from dflash_compile.runtime.errors import BuildError

from .bind import bound
from .caches import CACHE, NEW_ROWS
from .lower import Stateful
from .roles import sizes

Array = np.ndarray[Any, Any]
_DTYPES = {"float32": torch.float32, "float16": torch.float16}

CACHE_FACTOR = 2.5
"""keys and values of a row are a few times smaller than the largest of them"""
ROUNDING_FACTOR = 3.0
"""Deep models have a row, that of the token which all others rest on, whose sums are in the thousands in some layers and small ones after them: what
float16 loses in between is a large part of what is left (13 % of a key of SmolLM2-135M). No fixed bound holds for it, but the torch program with its values
rounded loses as much; an engine, whose sums have another order, may lose this many times that."""
_WIDE_SHARE = 1 / 64
"""of what rounding to float16 does to a row, that float32 may do to it: 2⁻¹³ of it, and room for a constant that is stored in float16"""
_LEAST = 2.0**-14
"""the smallest float16 with all its bits"""


@dataclass(frozen=True)
class Trial:
    """Calls of one function, in order, from a state full of rubbish: forward, then back to where it began."""

    state: Array
    calls: tuple[Mapping[str, Array], ...]


def trial_of(stateful: Stateful) -> Trial:
    """The same calls every time."""
    random, role = np.random.default_rng(0), stateful.role
    most = role.cache.length - role.rows
    positions = (0, min(role.rows, most), min(role.rows // 2, most))
    state = random.standard_normal(role.cache.sizes).astype(role.dtype)
    return Trial(state, tuple(_feeds(stateful, position, random) for position in positions))


def _feeds(stateful: Stateful, position: int, random: np.random.Generator) -> dict[str, Array]:
    tables = [len(value) for name, value in stateful.program.state_dict.items() if name.endswith(("embed_tokens_weight", "p_embedding"))]
    feeds: dict[str, Array] = {"position": np.array([position], np.int32)}
    for port in stateful.role.inputs:
        if port.name == "valid":
            feeds[port.name] = np.array([max(stateful.role.rows // 2, 1)], np.int32)
        elif port.name not in (CACHE, "position"):
            ids = port.dtype == "int32"
            feeds[port.name] = random.integers(0, min(tables), sizes(port)).astype(np.int32) if ids else random.standard_normal(sizes(port)).astype(port.dtype)
    return feeds


class Reference:
    """The torch program behind a function, some of its weights replaced; `state` is what the cache should be, whoever keeps it."""

    def __init__(self, stateful: Stateful, sources: Mapping[Owner, TensorSource], weights: Mapping[str, torch.Tensor]) -> None:
        self.role, self.ports = stateful.role, stateful.role.returned
        self.program = bound(stateful, sources, weights)
        self.tables = stateful.constants.keys() - {CACHE}
        self.state = stateful.constants.get(CACHE, torch.zeros(()))
        self._scores = next((node.args[0] for node in reversed(self.program.graph.nodes) if node.target is torch.ops.aten.argmax.default), None)

    def rounding(self, feeds: Mapping[str, Array]) -> Array:
        """How far rounding every value on the way to float16 moves each row that a call writes, as a part of its norm, in the entry where it is most: [S]."""
        before, start, end = self.state, int(feeds["position"][0]), int(feeds["position"][0]) + self.role.rows
        written = []
        for rounded in (False, True):
            self.state = before
            self.run(feeds, rounded)
            written.append(self.state.float().numpy()[:, :, start:end])
        self.state = before
        return np.nan_to_num(_relative(written[1], written[0]), nan=0.0, posinf=0.0)  # what float16 cannot hold explains nothing

    def run(self, feeds: Mapping[str, Array], rounded: bool = False) -> tuple[dict[str, Array], Array | None]:
        """Results by name, and the logits that the choices among them were made from.

        In float32 throughout, cache and taps too, with tables that are as near as the role's dtype is to them; or every value `rounded` to float16.
        """
        given = feeds if self.role.cache.in_state else {**feeds, CACHE: self._cache(rounded).numpy()}
        values: list[torch.Tensor] = []
        for spec in self.program.graph_signature.input_specs:
            if spec.target is None:
                values.append(torch.from_numpy(np.asarray(given[spec.arg.name])))
            else:
                values.append(self._cache(rounded) if spec.target == CACHE else self._stored(spec.target))
        interpreter = _Keeping(self.program.graph_module, self._scores, rounded)
        with torch.no_grad():
            results = interpreter.run(*values)
        if self.role.cache.in_state:
            self.state, *results = results
        found = {port.name: value.numpy() for port, value in zip(self.ports, results, strict=True)}
        if (rows := found.pop(NEW_ROWS, None)) is not None:
            self.state = torch.from_numpy(with_rows(self._cache(rounded).numpy(), rows, feeds))
        return found, None if interpreter.kept is None else interpreter.kept.numpy()

    def _cache(self, rounded: bool) -> torch.Tensor:
        return self.state.to(_DTYPES[self.role.dtype] if rounded else torch.float32)

    def _stored(self, name: str) -> torch.Tensor:
        value: torch.Tensor = self.program.state_dict[name]
        return value.to(_DTYPES[self.role.dtype]).to(value.dtype) if name in self.tables and value.is_floating_point() else value


def with_rows(cache: Array, rows: Array, feeds: Mapping[str, Array]) -> Array:
    """What a host makes of the new rows of a call, all of them committed."""
    written, start = cache.copy(), int(feeds["position"][0])
    written[:, :, start : start + rows.shape[2]] = rows
    return written


class _Keeping(torch.fx.Interpreter):
    """Keeps the value of one node. Nothing becomes narrower than float32, or everything is rounded to float16."""

    def __init__(self, module: torch.fx.GraphModule, node: Any, rounded: bool) -> None:
        super().__init__(module)
        self.node, self.rounded, self.kept = node, rounded, None

    def run_node(self, n: Any) -> Any:
        """The node's value."""
        if self.rounded and n.target is torch.ops.dflash.rms_norm.default:
            return _rounded_norm(*self.fetch_args_kwargs_from_env(n)[0])
        value = super().run_node(n)
        if self.rounded and n.op == "call_function" and isinstance(value, torch.Tensor) and value.dtype == torch.float32:
            value = value.half().float()
        if n is self.node:
            self.kept = value
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What `target` gives, unless that would be a float32 tensor made narrower."""
        if not self.rounded and target is torch.ops.aten._to_copy.default and kwargs.get("dtype") == torch.float16:
            return args[0].float()
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        return super().call_function(target, args, kwargs)


def _rounded_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm step by step in float16, in a form that cannot overflow: x over its largest number first."""
    x, eps_root = x.half(), torch.tensor(eps**0.5, dtype=torch.float16)
    largest = x.abs().amax(-1, keepdim=True).clamp(min=_LEAST)
    scaled = x / largest
    mean = scaled.square().mean(-1, keepdim=True) + (eps_root / largest).square()
    return (scaled / mean.sqrt() * weight.half()).float()


def compare(
    stateful: Stateful,
    trial: Trial,
    reference: Reference,
    found: Sequence[tuple[Mapping[str, Array], Array]],
    tolerance: float,
    wide: Sequence[tuple[Mapping[str, Array], Array]] | None = None,
    wide_tolerance: float = 0.0,
) -> None:
    """`found` is what an engine gave to each call and its state after it. Raises `BuildError` where that is not what `reference` gives.

    Every call is judged by itself, from the state that the engine had before it. `tolerance` is a part of the largest number of an output; choices are
    right where no logit is further above theirs. The rows that a call wrote are judged one by one in every entry of the cache, by their norm, which may be
    off by `CACHE_FACTOR` times as much, in float16 also by `ROUNDING_FACTOR` times what rounding does to that row; all others must stay as they were.

    `wide` is the same of an engine that computes in float32 what it should in float16, from the same states. It shows what the engine means, where no
    rounding hides a fault, and is held to `wide_tolerance` in the same way.
    """
    before = trial.state
    for number, (feeds, given) in enumerate(zip(trial.calls, found, strict=True)):
        reference.state = torch.from_numpy(before)
        rounding = reference.rounding(feeds) if stateful.role.dtype == "float16" else np.zeros(stateful.role.rows)
        wanted = *reference.run(feeds), reference.state.numpy()
        if wide is not None:
            _judge(stateful, feeds, before, wide[number], wanted, wide_tolerance, np.maximum(CACHE_FACTOR * wide_tolerance, _WIDE_SHARE * rounding))
        _judge(stateful, feeds, before, given, wanted, tolerance, np.maximum(CACHE_FACTOR * tolerance, ROUNDING_FACTOR * rounding))
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
    if found.shape != wanted.shape or not (np.array_equal(found[:, :, :start], before[:, :, :start]) and np.array_equal(found[:, :, end:], before[:, :, end:])):
        return np.full(count, np.inf)
    return _relative(found[:, :, start:end], wanted[:, :, start:end])


def _relative(found: Array, wanted: Array) -> Array:
    """[N, kv, S, hd] twice: the distance of each row as a part of its norm, in the entry where it is largest."""
    rows, right = (np.moveaxis(state.astype(np.float32), 2, 1).reshape(*state.shape[:1], state.shape[2], -1) for state in (found, wanted))
    parts = np.linalg.norm(rows - right, axis=-1) / np.linalg.norm(right, axis=-1).clip(1e-3)
    return np.asarray(parts.max(axis=0))


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
            why=f"it is {short:.1%} of the largest number away, and rounding explains {tolerance:.1%}",
            fix="report this, with both config.json",
        )
