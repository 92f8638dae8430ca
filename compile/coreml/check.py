"""Proof that a saved package computes what was traced: every function run here beside the torch program, with the package's own weights in it.

So the graph is held to float16's rounding at any precision, and the weights by themselves to what that precision costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_compile.export.checkpoint import TensorSource
from dflash_compile.export.graph import Owner
from dflash_compile.export.signature import Port
from dflash_compile.runtime.errors import BuildError

from ..mil.evaluate import Array, Evaluator
from ..stateful.bind import bound
from ..stateful.caches import CACHE
from ..stateful.lower import Stateful
from .precision import Compression

TOLERANCE = 0.02
"""of the largest number of an output: float16's rounding through tens of layers; 0.005 is seen on small models"""
_CALLS = 3


def check_function(
    evaluator: Evaluator, stateful: Stateful, sources: Mapping[Owner, TensorSource], compression: Compression, tolerance: float = TOLERANCE
) -> None:
    """Run one function at several positions, forward and back, from a state full of rubbish. Raises `BuildError` where it differs."""
    role, function = stateful.role, stateful.role.function
    own = _own_weights(evaluator, stateful, sources, compression)
    reference = Reference(stateful, sources, own)
    random = np.random.default_rng(0)
    state = evaluator.new_state(function)
    state[CACHE] = torch.from_numpy(random.standard_normal(role.cache.sizes).astype(np.float16))
    reference.state = state[CACHE].clone()
    most = role.cache.length - role.rows
    for position in (0, min(role.rows, most), min(role.rows // 2, most))[:_CALLS]:
        feeds = _feeds(role.inputs, position, random, stateful)
        found = evaluator.run(function, feeds, state)
        wanted, scores = reference.run(feeds)
        for port in role.results:
            _compare(f"{function}: {port.name}", found[port.name], wanted[port.name], scores, tolerance)
        _compare(f"{function}: the cache after it", state[CACHE].numpy(), reference.state.numpy(), None, tolerance)


class Reference:
    """The torch program behind a function, its weights replaced; `state` is what the package's state should be."""

    def __init__(self, stateful: Stateful, sources: Mapping[Owner, TensorSource], weights: Mapping[str, torch.Tensor]) -> None:
        self.ports = stateful.role.results
        self.program = bound(stateful, sources, weights)
        self.state = stateful.constants[CACHE]
        self._scores = next((node.args[0] for node in self.program.graph.nodes if node.target is torch.ops.aten.argmax.default), None)

    def run(self, feeds: Mapping[str, Array]) -> tuple[dict[str, Array], Array | None]:
        """Results by name, and the logits that the choices among them were made from."""
        signature = self.program.graph_signature
        values: list[torch.Tensor] = []
        for spec in signature.input_specs:
            if spec.target is None:
                values.append(torch.from_numpy(np.asarray(feeds[spec.arg.name])))
            else:
                values.append(self.state if spec.target == CACHE else self.program.state_dict[spec.target])
        interpreter = _Keeping(self.program.graph_module, self._scores)
        with torch.no_grad():
            self.state, *results = interpreter.run(*values)
        scores = None if interpreter.kept is None else interpreter.kept.numpy()
        return {port.name: value.numpy() for port, value in zip(self.ports, results, strict=True)}, scores


class _Keeping(torch.fx.Interpreter):
    """Keeps the value of one node."""

    def __init__(self, module: torch.fx.GraphModule, node: Any) -> None:
        super().__init__(module)
        self.node, self.kept = node, None

    def run_node(self, n: Any) -> Any:
        """The node's value."""
        value = super().run_node(n)
        if n is self.node:
            self.kept = value
        return value


def _own_weights(evaluator: Evaluator, stateful: Stateful, sources: Mapping[Owner, TensorSource], compression: Compression) -> dict[str, torch.Tensor]:
    """The package's weights by the program's names. Raises `BuildError` for one that is missing or too far from the checkpoint's."""
    own = {}
    for name, ref in stateful.weights.items():
        # A tensor used under two names is stored once, under one of them.
        names = [other for other, same in stateful.weights.items() if same == ref]
        found = next((value for other in (name, *names) if (value := evaluator.weight(stateful.role.function, f"p_{other}")) is not None), None)
        source = sources[ref.owner]
        wanted = source.rows(ref.tensor, 0, source.shapes()[ref.tensor][0]).float()
        if found is None or found.numel() != wanted.numel():
            raise BuildError(f"the package's {stateful.role.function} lacks the weight {ref.tensor!r}", fix="report this, with the model's config.json")
        own[name] = found.float().reshape(wanted.shape)
        error = float((own[name] - wanted).norm() / wanted.norm().clamp(min=1e-12))
        if error > compression.error:
            raise BuildError(
                f"the weight {ref.tensor!r} was stored {error:.1%} away from the checkpoint's",
                why=f"{compression.name} loses at most {compression.error:.0%}",
                fix="build with a higher precision, and check the checkpoint for outliers",
            )
    return own


def _feeds(ports: tuple[Port, ...], position: int, random: np.random.Generator, stateful: Stateful) -> dict[str, Array]:
    vocabulary = {len(value) for name, value in stateful.program.state_dict.items() if name.endswith(("embed_tokens_weight", "p_embedding"))}
    feeds: dict[str, Array] = {}
    for port in ports:
        if port.name == CACHE:
            continue
        if port.name == "position":
            feeds[port.name] = np.array([position], np.int32)
        elif port.name == "valid":
            feeds[port.name] = np.array([max(stateful.role.rows // 2, 1)], np.int32)
        elif port.dtype == "int32":
            feeds[port.name] = random.integers(0, min(vocabulary), port.shape).astype(np.int32)
        else:
            feeds[port.name] = random.standard_normal(port.shape).astype(port.dtype)
    return feeds


def _compare(what: str, found: Array, wanted: Array, scores: Array | None, tolerance: float) -> None:
    if found.dtype.kind == "f":
        scale = max(float(np.abs(wanted.astype(np.float32)).max()), 1e-3)
        worst = float(np.abs(found.astype(np.float32) - wanted.astype(np.float32)).max()) / scale
        short = worst
    elif scores is not None:
        # Equal up to ties: how far the logit of its choice is below the largest.
        chosen = np.take_along_axis(scores, found.reshape(*scores.shape[:-1], 1).astype(np.int64), -1)[..., 0]
        short = float((scores.max(-1) - chosen).max()) / max(float(np.abs(scores).max()), 1e-3)
    else:
        short = 0.0 if np.array_equal(found, wanted) else 1.0
    if not short <= tolerance:
        raise BuildError(
            f"{what} is not what the traced graph gives",
            why=f"it is {short:.1%} of the largest number away, and float16 explains {tolerance:.1%}",
            fix="report this, with both config.json",
        )


def check_package(
    package: Path, statefuls: tuple[Stateful, ...], sources: Mapping[Owner, TensorSource], compression: Compression, tolerance: float = TOLERANCE
) -> None:
    """`check_function` on every function of `package`."""
    evaluator = Evaluator(package)
    for stateful in statefuls:
        check_function(evaluator, stateful, sources, compression, tolerance)
