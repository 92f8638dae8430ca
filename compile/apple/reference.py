"""What the torch program behind a stateful engine answers to a call: in float32, or with every value rounded to
float16.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner

from .bind import bound
from .caches import CACHE, NEW_ROWS
from .lower import Stateful

Array = np.ndarray[Any, Any]
_DTYPES = {"float32": torch.float32, "float16": torch.float16}
_LEAST = 2.0**-14
"""the smallest float16 with all its bits"""


class Reference:
    """The torch program behind a function, some of its weights replaced; `state` is what the cache should be, whoever
    keeps it.
    """

    def __init__(
        self, stateful: Stateful, sources: Mapping[Owner, TensorSource], weights: Mapping[str, torch.Tensor]
    ) -> None:
        self.role, self.ports = stateful.role, stateful.role.returned
        self.program = bound(stateful, sources, weights)
        self.tables = stateful.constants.keys() - {CACHE}
        self.state = stateful.constants.get(CACHE, torch.zeros(()))
        self._folded = folded(
            self.program, self.role.dtype, {name for name, ref in stateful.weights.items() if ref.exact}
        )
        self._scores = next(
            (
                node.args[0]
                for node in reversed(self.program.graph.nodes)
                if node.target is torch.ops.aten.argmax.default
            ),
            None,
        )

    def rounding(self, feeds: Mapping[str, Array]) -> Array:
        """How far rounding every value on the way to float16 moves each row that a call writes, as a part of its norm,
        in the entry where it is most: [S].
        """
        before, start, end = self.state, int(feeds["position"][0]), int(feeds["position"][0]) + self.role.rows
        written = []
        for rounded in (False, True):
            self.state = before
            self.run(feeds, rounded)
            written.append(self.state.float().numpy()[:, :, start:end])
        self.state = before
        return np.nan_to_num(
            relative(written[1], written[0]), nan=0.0, posinf=0.0
        )  # what float16 cannot hold explains nothing

    def run(self, feeds: Mapping[str, Array], rounded: bool = False) -> tuple[dict[str, Array], Array | None]:
        """Results by name, and the logits that the choices among them were made from.

        In float32 throughout, cache and taps too, with tables that are as near as the role's dtype is to them; or every
        value `rounded` to float16.
        """
        given = feeds if self.role.cache.in_state else {**feeds, CACHE: self._cache(rounded).numpy()}
        values: list[torch.Tensor] = []
        for spec in self.program.graph_signature.input_specs:
            if spec.target is None:
                values.append(torch.from_numpy(np.asarray(given[spec.arg.name])))
            else:
                values.append(self._cache(rounded) if spec.target == CACHE else self._stored(spec.target))
        interpreter = _Keeping(self.program.graph_module, self._scores, rounded, self._folded)
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
        return (
            value.to(_DTYPES[self.role.dtype]).to(value.dtype)
            if name in self.tables and value.is_floating_point()
            else value
        )


def folded(program: Any, dtype: str, exact: Collection[str]) -> frozenset[str]:
    """Names of values that follow from weights alone, 1 + w of a norm say: a converter stores them in place of the
    weights, in `dtype` where not `exact`.
    """
    if dtype != "float16":
        return frozenset()
    constant = {
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.target is not None and spec.target != CACHE and spec.target not in exact
    }
    found: set[str] = set()
    for node in program.graph.nodes:
        if (
            node.op == "call_function"
            and node.all_input_nodes
            and all(source.name in constant for source in node.all_input_nodes)
        ):
            constant.add(node.name)
            found.add(node.name)
    return frozenset(found)


def with_rows(cache: Array, rows: Array, feeds: Mapping[str, Array]) -> Array:
    """What a host makes of the new rows of a call, all of them committed."""
    written, start = cache.copy(), int(feeds["position"][0])
    written[:, :, start : start + rows.shape[2]] = rows
    return written


class _Keeping(torch.fx.Interpreter):
    """Keeps the value of one node. Nothing becomes narrower than float32, or everything is rounded to float16."""

    def __init__(self, module: torch.fx.GraphModule, node: Any, rounded: bool, folded: frozenset[str]) -> None:
        super().__init__(module)
        self.node, self.rounded, self.folded, self.kept = node, rounded, folded, None

    def run_node(self, n: Any) -> Any:
        """The node's value."""
        if self.rounded and n.target is torch.ops.dflash.rms_norm.default:
            return rounded_norm(*self.fetch_args_kwargs_from_env(n)[0])
        value = super().run_node(n)
        if (
            (self.rounded or n.name in self.folded)
            and n.op == "call_function"
            and isinstance(value, torch.Tensor)
            and value.dtype == torch.float32
        ):
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


def rounded_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm step by step in float16, in a form that cannot overflow: x over its largest number first."""
    x, eps_root = x.half(), torch.tensor(eps**0.5, dtype=torch.float16)
    largest = x.abs().amax(-1, keepdim=True).clamp(min=_LEAST)
    scaled = x / largest
    mean = scaled.square().mean(-1, keepdim=True) + (eps_root / largest).square()
    return (scaled / mean.sqrt() * weight.half()).float()


def relative(found: Array, wanted: Array) -> Array:
    """[N, kv, S, hd] twice: the distance of each row as a part of its norm, in the entry where it is largest."""
    rows, right = (
        np.moveaxis(state.astype(np.float32), 2, 1).reshape(*state.shape[:1], state.shape[2], -1)
        for state in (found, wanted)
    )
    parts = np.linalg.norm(rows - right, axis=-1) / np.linalg.norm(right, axis=-1).clip(1e-3)
    return np.asarray(parts.max(axis=0))
