"""Proof that a saved package computes what was traced: every function run here beside the torch program, with the
package's own weights in it.

Twice: in float32, where what the package means shows to a part in thousands, and in float16, where numbers overflow and
vanish. So the graph is held to rounding at any precision, and the weights by themselves to what that precision costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from ..apple.caches import CACHE, NEW_ROWS
from ..apple.lower import Stateful
from ..apple.parity_check import compare, parity_check
from ..apple.reference import Reference, with_rows
from .evaluator.evaluate import Array, Evaluator
from .precision import Compression

TOLERANCE = 0.02
"""of the largest number of an output: float16's rounding through tens of layers; 0.005 is seen on small models"""
WIDE_TOLERANCE = 5e-4
"""of the same when the package is computed in float32, where little but the order of sums differs: 4e-6 is seen over 30
layers of a llama, 2e-4 with muse's"""
_TABLE_ROUNDING = 2**-10
"""of a number, that float16 may do to a table"""


def check_package(
    package: Path,
    statefuls: tuple[Stateful, ...],
    sources: Mapping[Owner, TensorSource],
    compression: Compression,
    tolerance: float = TOLERANCE,
) -> None:
    """`check_function` on every function of `package`."""
    evaluator = Evaluator(package)
    for stateful in statefuls:
        check_function(evaluator, stateful, sources, compression, tolerance)
        evaluator.forget()


def check_function(
    evaluator: Evaluator,
    stateful: Stateful,
    sources: Mapping[Owner, TensorSource],
    compression: Compression,
    tolerance: float = TOLERANCE,
) -> None:
    """Run one function at several positions, forward and back.

    Raises `BuildError` where it differs from the traced graph.
    """
    _check_tables(evaluator, stateful)
    check = parity_check(stateful)
    cache = check.state
    found: list[tuple[Mapping[str, Array], Array]] = []
    wide: list[tuple[Mapping[str, Array], Array]] = []
    for feeds in check.calls:
        wide.append(run_once(evaluator, stateful, feeds, cache.astype(np.float32), wide=True))
        found.append(run_once(evaluator, stateful, feeds, cache.copy()))
        cache = found[-1][1]
    reference = Reference(stateful, sources, _own_weights(evaluator, stateful, sources, compression))
    compare(stateful, check, reference, found, tolerance, wide, WIDE_TOLERANCE)


def _check_tables(evaluator: Evaluator, stateful: Stateful) -> None:
    """Tables that are no checkpoint's, those of rotary positions for one, are stored as they are: in four bits they
    turn every key by the wrong angle.
    """
    for name in sorted(stateful.constants.keys() - {CACHE}):
        table, found = stateful.constants[name].float(), evaluator.weight(stateful.role.function, f"b_{name}")
        if found is None or found.shape != table.shape:  # folded into something else: running tells
            continue
        if not torch.allclose(found.float(), table, rtol=_TABLE_ROUNDING, atol=1e-4 * float(table.abs().max())):
            raise BuildError(
                f"{stateful.role.function}: the table {name} is not what the traced graph gives",
                why=f"a number of it is {float((found.float() - table).abs().max()):.2g} away",
                fix="report this, with both config.json",
            )


def run_once(
    evaluator: Evaluator, stateful: Stateful, feeds: Mapping[str, Array], cache: Array, wide: bool = False
) -> tuple[dict[str, Array], Array]:
    """Results of one call, and the cache after it, whoever keeps that; `wide` as in `Evaluator.run`."""
    function = stateful.role.function
    if stateful.role.cache.in_state:
        state = {CACHE: torch.from_numpy(cache)}
        return evaluator.run(function, feeds, state, wide), state[CACHE].numpy()
    results = evaluator.run(function, {**feeds, CACHE: cache}, wide=wide)
    rows = results.pop(NEW_ROWS, None)
    return results, cache if rows is None else with_rows(cache, rows, feeds)


def _own_weights(
    evaluator: Evaluator, stateful: Stateful, sources: Mapping[Owner, TensorSource], compression: Compression
) -> dict[str, torch.Tensor]:
    """The package's weights by the program's names.

    Raises `BuildError` for one that is missing or too far from the checkpoint's.
    """
    own = {}
    for name, ref in stateful.weights.items():
        # A tensor used under two names is stored once, under one of them.
        names = [other for other, same in stateful.weights.items() if same == ref]
        found = next(
            (
                value
                for other in (name, *names)
                if (value := evaluator.weight(stateful.role.function, f"p_{other}")) is not None
            ),
            None,
        )
        source = sources[ref.owner]
        wanted = source.rows(ref.tensor, 0, source.shapes()[ref.tensor][0]).float()
        if found is None and wanted.ndim != 2:
            # The converter may have turned around or cut what is no matrix, under another name. The run beside torch
            # shows whether that is right.
            own[name] = wanted
            continue
        if found is None or found.numel() != wanted.numel():
            raise BuildError(
                f"the package's {stateful.role.function} lacks the weight {ref.tensor!r}",
                fix="report this, with the model's config.json",
            )
        own[name] = found.float().reshape(wanted.shape)
        error = float((own[name] - wanted).norm() / wanted.norm().clamp(min=1e-12))
        if error > compression.error:
            raise BuildError(
                f"the weight {ref.tensor!r} was stored {error:.1%} away from the checkpoint's",
                why=f"{compression.name} loses at most {compression.error:.0%}",
                fix="build with a higher precision, and check the checkpoint for outliers",
            )
    return own
