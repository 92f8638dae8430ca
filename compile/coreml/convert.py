"""One stateful graph with its weights → one Core ML package with the function `main`."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.parameter_names import EMBEDDING, HEAD
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from ..apple.bind import bound
from ..apple.caches import CACHE
from ..apple.lower import Stateful
from .names import PART
from .precision import Compression, Kept

_DTYPES: Mapping[str, Any] = {"float16": np.float16, "int32": np.int32}


def convert(
    stateful: Stateful, sources: Mapping[Owner, TensorSource], compression: Compression, target: str, package: Path
) -> None:
    """Write `stateful` to the directory `package`. Raises `BuildError` where the converter cannot take the graph."""
    with quiet():
        import coremltools as ct

        from . import ops  # noqa: F401  (registers what the converter lacks)

        role, program = stateful.role, bound(stateful, sources)
        try:
            model = ct.convert(
                program,
                convert_to="mlprogram",
                minimum_deployment_target=deployment_target(target),
                compute_precision=ct.transform.FP16ComputePrecision(op_selector=_Exact(stateful).narrows),
                outputs=[ct.TensorType(name=port.name, dtype=_DTYPES[port.dtype]) for port in role.returned],
                skip_model_load=True,
            )
            if compression.compress is not None:
                model = compression.compress(model, _kept(stateful))
            model.save(str(package))
        except Exception as error:  # the converter raises whatever the step it was in raises
            raise BuildError(
                f"Core ML's converter cannot take the {role.function} graph",
                why=f"{type(error).__name__}: {error}",
                fix="report this, with both config.json",
            ) from error


def _kept(stateful: Stateful) -> Kept:
    # A rotary table is long enough to be taken for a matrix. In four bits it turns every key by the wrong angle.
    tables = (
        f"b_{name}{suffix}" for name in sorted(stateful.constants.keys() - {CACHE}) for suffix in ("", "_to_fp16")
    )
    exact = {name for name, ref in stateful.weights.items() if ref.exact}
    heads = {
        name: stateful.program.state_dict[name].shape[0]
        for name, ref in stateful.weights.items()
        if ref.tensor in (HEAD, EMBEDDING)
    }
    return Kept(
        (*tables, *(constant for name in sorted(exact) for constant in (f"p_{name}", f"p_{name}{PART}0"))),
        tuple(f"p_{name}{part}_to_fp16" for name in sorted(heads) for part in ("", *_parts(heads[name]))),
    )


def _parts(rows: int) -> list[str]:
    from .ops import WIDEST

    return [f"{PART}{number}" for number in range(-(-rows // WIDEST))]


def deployment_target(name: str) -> Any:
    """coremltools' name of a target in `options.TARGETS`."""
    import coremltools as ct

    return {"macos15": ct.target.macOS15, "macos26": ct.target.macOS26}[name]


class _Exact:
    """Which operations stay in float32: what the context feature is made of, and the sums of the drafter's residual.

    Both reach thousands in drafters trained in bfloat16, and everything the drafter sees passes through them.
    """

    def __init__(self, stateful: Stateful) -> None:
        self.weights = tuple(f"p_{name}" for name, ref in stateful.weights.items() if ref.exact)
        self.drafts = stateful.role.name == "draft"

    def narrows(self, op: Any) -> bool:
        """Whether `op` may compute in float16."""
        return not (self._residual(op) or self._feature(op))

    def _feature(self, op: Any) -> bool:
        """Whether `op` lies between the exact product and the next one."""
        if not self.weights:
            return False
        inputs = [
            var for value in op.inputs.values() for var in (value if isinstance(value, list | tuple) else [value])
        ]
        if any(var.name.startswith(self.weights) for var in inputs):
            return True
        if op.op_type in ("linear", "matmul", "conv", "const"):
            return False
        return any(var.op is not None and self._feature(var.op) for var in inputs)

    def _residual(self, op: Any) -> bool:
        if not self.drafts or op.op_type != "add":
            return False
        return (
            op.x.rank == op.y.rank == 3
            and op.x.shape == op.y.shape
            and op.x.op is not None
            and op.y.op is not None
            and op.x.val is None
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """coremltools says on every machine but a Mac that it cannot run models, of every torch that it has not seen it
    yet, and draws bars of its own.
    """
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
