"""What can be seen wrong with a saved package without running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import BuildError

from .evaluate import OPERATIONS, STATE_OPERATIONS, _is_state
from .program import load
from .values import type_name

_HIGHEST_RANK = 5


def lint(package: Path) -> None:
    """Raises `BuildError` listing everything that is wrong with `package`."""
    saved = load(package)
    faults = [f"{name}: {fault}" for name, function in saved.functions.items() for fault in _faults(function)]
    states = {name: _states(function) for name, function in saved.functions.items()}
    if len({tuple(sorted(found.items())) for found in states.values()}) > 1:
        faults.append(f"functions that share memory declare different states: {states}")
    if faults:
        raise BuildError(
            f"the package {package.name} breaks a rule of Core ML's",
            where=str(package),
            why="; ".join(faults[:8]) + (f"; and {len(faults) - 8} more" if len(faults) > 8 else ""),
            fix="report this, with the model's config.json",
        )


def _faults(function: Any) -> Iterator[str]:
    written = {op.state.name for op in function.operations if op.op_type == "coreml_update_state"}
    yield from (f"state {name} is never written" for name in _states(function) if name not in written)
    for op in function.operations:
        if op.op_type == "coreml_update_state" and op.value.op is not None and op.value.op.op_type == "read_state":
            yield f"state {op.state.name} is written back as it was read"
        if not op.op_type.startswith("const") and op.op_type not in OPERATIONS and op.op_type not in STATE_OPERATIONS:
            yield f"operation {op.name} is of the unknown kind {op.op_type}"
        yield from (
            f"{var.name} has {var.rank} dimensions"
            for var in op.outputs
            if var.rank > _HIGHEST_RANK and not _is_table(var)
        )
    yield from (f"output {var.name} is float32" for var in function.outputs if type_name(var.dtype) == "fp32")


def _is_table(var: Any) -> bool:
    """Whether it only tells what stored weights stand for: the tables of a palette have two dimensions more than the
    weights (`constexpr_lut_to_dense`).
    """
    return bool(var.child_ops) and all(op.op_type.startswith("constexpr") for op in var.child_ops)


def _states(function: Any) -> dict[str, str]:
    wrapped = {name: var.sym_type.wrapped_type() for name, var in function.inputs.items() if _is_state(var)}
    return {name: f"{type_name(kind.get_primitive())} {list(kind.get_shape())}" for name, kind in wrapped.items()}
