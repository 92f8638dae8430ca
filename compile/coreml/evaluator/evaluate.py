"""Running the functions of a saved package, operation by operation, every result checked against its declaration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_compile.runtime.errors import BuildError

from ..names import PART
from . import algebra, elementwise, layout
from .program import load
from .values import Fault, check, tensor, type_name, widened

OPERATIONS = {**elementwise.OPERATIONS, **layout.OPERATIONS, **algebra.OPERATIONS}
STATE_OPERATIONS = ("read_state", "coreml_update_state")
_WORDS = ("str",)

Array = np.ndarray[Any, Any]


class Evaluator:
    """The functions of one package. A state is a plain dictionary that its caller keeps."""

    def __init__(self, package: Path) -> None:
        """Raises `BuildError` for a package that is not whole."""
        self.saved = load(package)
        self._constants: dict[int, Any] = {}
        self._wide = False

    @property
    def functions(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.saved.functions)

    def new_state(self, function: str) -> dict[str, torch.Tensor]:
        """Zeros for every state of `function`."""
        return {
            name: tensor(
                np.zeros(var.sym_type.wrapped_type().get_shape()),
                type_name(var.sym_type.wrapped_type().get_primitive()),
            )
            for name, var in self._function(function).inputs.items()
            if _is_state(var)
        }

    def run(
        self,
        function: str,
        inputs: Mapping[str, Array],
        state: dict[str, torch.Tensor] | None = None,
        wide: bool = False,
    ) -> dict[str, Array]:
        """Outputs of `function` by name; what it writes to states is left in `state`.

        `wide` computes in float32 what the package computes in float16, states and outputs included; constants keep the
        numbers that are stored.

        Raises `BuildError` naming the operation that is unknown, gives something else than it declares, reaches outside
        what it reads, or turns finite numbers into ones that are not.
        """
        body, values = self._function(function), {}
        self._wide = wide
        for name, var in body.inputs.items():
            if not _is_state(var):
                values[var] = self._input(function, name, var, inputs)
        for op in body.operations:
            try:
                self._step(op, values, state if state is not None else {})
            except Fault as fault:
                raise BuildError(
                    f"operation {op.name!r} ({op.op_type}) {fault}",
                    where=f"{self.saved.package.name}, function {function}",
                    fix="do not use this package: report this with the model's config.json",
                ) from fault
        return {var.name: _array(self._value(var, values), type_name(var.dtype)) for var in body.outputs}

    def weight(self, function: str, name: str) -> torch.Tensor | None:
        """The constant whose name starts with `name`, decompressed, or None where `function` has none of that name.

        One that was split is whole.
        """
        found = [
            op
            for op in self._function(function).operations
            if op.op_type.startswith("const") and op.outputs[0].name.startswith(name)
        ]
        used = [op for op in found if _feeds_computation(op)]
        if used and PART in used[0].outputs[0].name:
            parts = {_part(op): self._constant(op) for op in used if PART in op.outputs[0].name}
            return torch.cat([parts[number] for number in sorted(parts)])
        return self._constant(used[0]) if used else None

    def forget(self) -> None:
        """Drop the weights that were decompressed so far: each function holds its own."""
        self._constants.clear()

    def _function(self, name: str) -> Any:
        if name not in self.saved.functions:
            raise BuildError(
                f"the package has no function {name!r}",
                where=str(self.saved.package),
                fix=f"it has {', '.join(self.functions)}",
            )
        return self.saved.functions[name]

    def _input(self, function: str, name: str, var: Any, inputs: Mapping[str, Array]) -> torch.Tensor:
        where = f"{self.saved.package.name}, function {function}"
        if name not in inputs:
            raise BuildError(
                f"the input {name!r} was not given",
                where=where,
                fix=f"give all of {', '.join(self._function(function).inputs)}",
            )
        value: torch.Tensor = widened(tensor(inputs[name], type_name(var.dtype)), self._wide)
        try:
            check(value, var, self._wide)
        except Fault as fault:
            raise BuildError(
                f"the input {name!r} {fault}", where=where, fix="give what the function declares"
            ) from fault
        return value

    def _step(self, op: Any, values: dict[Any, Any], state: dict[str, torch.Tensor]) -> None:
        if op.op_type.startswith("const"):
            return  # looked up when needed
        if op.op_type in STATE_OPERATIONS:
            results: Any = self._state_step(op, values, state)
        elif op.op_type in OPERATIONS:
            given = {key: self._argument(value, values) for key, value in op.inputs.items() if value is not None}
            if self._wide and given.get("dtype") == "fp16":
                given["dtype"] = "fp32"
            try:
                results = OPERATIONS[op.op_type](**given)
            except (RuntimeError, TypeError, IndexError) as error:
                raise Fault(f"cannot run on {', '.join(op.inputs)}: {error}") from error
            _check_finite(results, given)
        else:
            raise Fault("is of a kind this evaluator does not know")
        for var, result in zip(op.outputs, results if isinstance(results, tuple | list) else [results], strict=True):
            result = widened(result, self._wide)
            check(result, var, self._wide)
            values[var] = result

    def _state_step(self, op: Any, values: dict[Any, Any], state: dict[str, torch.Tensor]) -> torch.Tensor:
        var = op.input if op.op_type == "read_state" else op.state
        if var.name not in state:
            raise Fault(f"needs the state {var.name!r}, which was not given")
        if op.op_type == "coreml_update_state":
            state[var.name] = self._value(op.value, values)
        return state[var.name]

    def _argument(self, value: Any, values: dict[Any, Any]) -> Any:
        return (
            [self._value(item, values) for item in value]
            if isinstance(value, list | tuple)
            else self._value(value, values)
        )

    def _value(self, var: Any, values: dict[Any, Any]) -> Any:
        if var in values:
            return values[var]
        if var.op is None:
            raise Fault(f"reads {var.name!r}, which nothing makes")
        return widened(self._constant(var.op), self._wide)

    def _constant(self, op: Any) -> Any:
        var = op.outputs[0]
        if id(var) not in self._constants:
            if op.op_type == "const":
                value = op.val.val
            elif op.op_type.startswith("constexpr"):
                value = op.materialized_val_inference()
            else:
                raise Fault(f"was reached before {op.name!r}, which it reads")
            self._constants[id(var)] = value if isinstance(value, str) else tensor(value, type_name(var.dtype))
        return self._constants[id(var)]


def _part(op: Any) -> int:
    digits = op.outputs[0].name.partition(PART)[2].partition("_")[0]
    return int(digits)


def _is_state(var: Any) -> bool:
    from coremltools.converters.mil.mil import types

    return bool(types.is_state(var.sym_type))


def _feeds_computation(op: Any) -> bool:
    return any(not child.op_type.startswith("const") for child in op.outputs[0].child_ops)


def _check_finite(results: Any, given: Mapping[str, Any]) -> None:
    """Numbers that are not finite may be handed on, never made."""
    made = [
        value
        for value in (results if isinstance(results, tuple | list) else [results])
        if value.is_floating_point() and not bool(value.isfinite().all())
    ]
    taken = [
        item
        for value in given.values()
        for item in (value if isinstance(value, list) else [value])
        if isinstance(item, torch.Tensor)
    ]
    if made and all(bool(value.isfinite().all()) for value in taken if value.is_floating_point()):
        raise Fault(f"makes numbers that are not finite in {made[0].dtype}")


def _array(value: torch.Tensor, name: str) -> Array:
    array = value.numpy()
    return array if value.is_floating_point() or value.dtype == torch.bool else array.astype(name)
