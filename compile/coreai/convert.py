"""Stateful graphs with their weights → one `.aimodel`, in which entry points share weights.

Equal inputs give equal bytes.
"""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from ..apple.bind import bound
from ..apple.caches import CACHE
from ..apple.lower import Stateful
from .transpose import with_transposed_weights

_METADATA, _DATE = "metadata.json", "19800101T000000Z"


def convert(graphs: Sequence[Stateful], sources: Mapping[Owner, TensorSource], model: Path) -> None:
    """Write all `graphs` to the folder `model`. Raises `BuildError` where the converter cannot take them."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter("ignore")  # it has not seen this torch yet, it says
        try:
            _convert(graphs, sources, model)
        except Exception as error:  # the converter raises whatever the step it was in raises
            names = ", ".join(graph.role.function for graph in graphs)
            raise BuildError(
                f"Core AI's converter cannot take the graphs {names}",
                why=f"{type(error).__name__}: {error}",
                fix="report this, with both config.json",
            ) from error
    metadata = json.loads((model / _METADATA).read_text())
    (model / _METADATA).write_text(json.dumps({**metadata, "creationDate": _DATE}, indent=1, sort_keys=True) + "\n")


def _convert(graphs: Sequence[Stateful], sources: Mapping[Owner, TensorSource], model: Path) -> None:
    from coreai_torch import TorchConverter, get_decomp_table

    converter = TorchConverter(mode=TorchConverter.Mode.RELEASE)
    converter.register_torch_lowering("dflash::cache_write.default")(_cache_write)
    table = {**get_decomp_table(), torch.ops.dflash.rms_norm.default: _rms_norm}
    table.pop(torch.ops.aten.linear.default, None)
    for graph in graphs:
        inputs = [port.name for port in graph.role.inputs if port.name != CACHE]
        results = [port.name for port in graph.role.results]
        program = with_transposed_weights(bound(graph, sources).run_decompositions(table))
        converter.add_exported_program(
            program, input_names=inputs, output_names=results, state_names=[CACHE], entrypoint_name=graph.role.function
        )
    converter.to_coreai().save_asset(model)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _cache_write(values: Any, node: Any, _location: Any) -> Any:
    """One `slice_update`; the converter's own form of an indexed write makes the runtime abort."""
    from coreai._compiler.dialects import coreai

    cache, rows, position = (values[node.args[at].name] for at in (0, 1, 3))
    index, (count, heads, length, width) = node.args[2], rows.type.shape

    def ints(*numbers: int) -> Any:
        return coreai.constant(np.array(numbers, np.int32))

    begin = coreai.concat(0, [ints(index, 0), position, ints(0)])
    end = coreai.concat(0, [ints(index + count, heads), coreai.add(position, ints(length)), ints(width)])
    return coreai.slice_update(cache, begin, end, ints(1, 1, 1, 1), rows)
