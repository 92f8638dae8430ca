"""Trying an ONNX engine that was just written: it loads, and gives finite numbers of the promised shapes.

Whether the numbers are right is for the conformance tests; this finds a damaged file or an operator the library lacks.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from dflash_compile.export.tracing.signature import Port, Signature
from dflash_compile.runtime.errors import BuildError

# Running an engine takes its weights into memory twice, mapped and packed. Loading does not: larger ones are only
# loaded.
_RUN_BELOW_BYTES = 256 << 20
_ROWS = {"rows": 3, "picked": 3, "proposals": 2}


def importable() -> bool:
    """Whether this machine has ONNX Runtime."""
    return importlib.util.find_spec("onnxruntime") is not None


def check_engine(path: Path, signature: Signature, size: int | None = None) -> None:
    """Load the engine at `path`, and run it once where it is small; `size` is that of its weights in bytes, where they
    are not beside it under its name.

    Raises `BuildError` when either fails or a port differs.
    """
    import onnxruntime

    found = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")) if size is None else size
    small = found < _RUN_BELOW_BYTES
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "0" if small else "1")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        _check_ports(session, signature)
        if small:
            _check_run(session, signature)
    except BuildError:
        raise
    except Exception as error:  # onnxruntime raises a class of its own for every kind of failure
        raise BuildError(
            f"the {signature.role} engine does not run here",
            where=path.name,
            why=str(error),
            fix="report this, with the model's config.json",
        ) from error


def _check_ports(session: Any, signature: Signature) -> None:
    for kind, found, wanted in (
        ("inputs", session.get_inputs(), signature.inputs),
        ("outputs", session.get_outputs(), signature.outputs),
    ):
        have = [(port.name, list(port.shape)) for port in found]
        want = [(port.name, list(port.shape)) for port in wanted]
        if have != want:
            raise BuildError(
                f"the {kind} of the {signature.role} engine are not those promised",
                why=f"{have} instead of {want}",
                fix="report this, with the model's config.json",
            )


def _check_run(session: Any, signature: Signature) -> None:
    generator = np.random.default_rng(0)
    outputs = session.run(None, {port.name: _sample(port, generator) for port in signature.inputs})
    for port, value in zip(signature.outputs, outputs, strict=True):
        shape = _sizes(port)
        if value.shape != shape or not np.isfinite(value).all():
            what = (
                "holds numbers that are not finite" if value.shape == shape else f"has shape {value.shape}, not {shape}"
            )
            raise BuildError(
                f"output {port.name!r} of the {signature.role} engine {what}",
                fix="check the checkpoint for damaged weights",
            )


def _sample(port: Port, generator: np.random.Generator) -> Any:
    shape = _sizes(port)
    if port.dtype == "int32":
        # Zero is a position with no history, a token, and a row that exists.
        return np.zeros(shape, np.int32)
    return generator.standard_normal(shape, dtype=np.float32).astype(port.dtype)


def _sizes(port: Port) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else _ROWS[size] for size in port.shape)
