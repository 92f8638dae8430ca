"""Binding: weights stream from checkpoints, through their encodings, into one data file beside the graph.

Every offset is known before the first byte is read, so a tensor passes through memory in chunks, whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir
import torch

from dflash_compile.export.checkpoints.checkpoint import TensorSource
from dflash_compile.export.tracing.graph import Owner
from dflash_compile.runtime.errors import BuildError

from .encoding import Shape
from .lowered import Lowered, WeightBinding, pieces
from .tiles import Tile, TileEncoder

CHUNK_BYTES = 64 << 20
# Pages: a runtime maps the file and each array starts on a page of its own.
ALIGNMENT = 4096
# Smaller constants stay in the graph file, where shape inference can see them.
_INLINE_BYTES = 1024

Advance = Callable[[int], None]
"""called with the number of bytes just written"""


def bind(
    lowered: Lowered,
    sources: Mapping[Owner, TensorSource],
    directory: Path,
    name: str,
    advance: Advance = lambda _: None,
) -> Path:
    """Write `name` (the graph) and `name.data` (its weights) into `directory`; returns the path of the graph.

    Peak memory is a few chunks of `CHUNK_BYTES`. Equal inputs give equal bytes. Raises `BuildError` when a checkpoint
    tensor has another shape than the graph or holds numbers that are not finite, `CheckpointError` when it cannot be
    read.
    """
    location = f"{name}.data"
    model = lowered.model
    constants = {key: tensor for key, tensor in _constants(model).items() if not isinstance(tensor, ir.ExternalTensor)}
    sizes = {key: size for key, size in _sizes(lowered).items() if key in lowered.bindings or key in constants}
    offsets, end = _layout(sizes)
    with (directory / location).open("wb") as data, TileEncoder() as encoder:
        data.truncate(end)
        for group in _by_tensor(lowered.bindings):
            _write_tensor(data, group, offsets, sources, encoder, advance)
        for key, tensor in constants.items():
            data.seek(offsets[key])
            data.write(tensor.tobytes())
            advance(tensor.nbytes)
    for key, size in sizes.items():
        value = model.graph.initializers[key]
        assert value.dtype is not None
        assert value.shape is not None
        value.const_value = ir.ExternalTensor(
            location, offsets[key], size, value.dtype, shape=value.shape, name=key, base_dir=directory
        )
    path = directory / name
    path.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    return path


def take_over(lowered: Lowered, bound: ir.Model) -> Lowered:
    """`lowered` with the weights that `bound`, a model written by `bind` into the same folder, has under the same
    names; only the others are left to bind.
    """
    left: dict[str, WeightBinding] = {}
    for key, binding in lowered.bindings.items():
        known = bound.graph.initializers.get(key)
        if known is None or not isinstance(known.const_value, ir.ExternalTensor):
            left[key] = binding
        else:
            lowered.model.graph.initializers[key].const_value = known.const_value
    return Lowered(lowered.signature, lowered.model, left)


def check_weight_shapes(lowered: Lowered, sources: Mapping[Owner, TensorSource]) -> None:
    """Raises `BuildError` for a checkpoint tensor that is missing or has another shape than the graph.

    Reads no weights.
    """
    for binding in lowered.bindings.values():
        for name, count in pieces(binding.ref, binding.shape[0]):
            _check_shape(sources[binding.ref.owner], binding.ref.owner, name, (count, *binding.shape[1:]))


def size_of(lowered: Lowered) -> int:
    """Bytes of arrays that binding will write. The files are a little larger: pages, and the graph itself."""
    return sum(_sizes(lowered).values())


def _constants(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The arrays known already that are too large for the graph file."""
    known = {str(value.name): value.const_value for value in model.graph.initializers.values()}
    return {key: tensor for key, tensor in known.items() if tensor is not None and tensor.nbytes > _INLINE_BYTES}


def _sizes(lowered: Lowered) -> dict[str, int]:
    """Bytes of every array of the data file, in order."""
    weights = {key: binding.stored.bytes for key, binding in lowered.bindings.items()}
    return weights | {key: tensor.nbytes for key, tensor in _constants(lowered.model).items()}


def _layout(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each array starts, and where the file ends."""
    offsets, end = {}, 0
    for key, size in sizes.items():
        offsets[key] = -(-end // ALIGNMENT) * ALIGNMENT
        end = offsets[key] + size
    return offsets, end


def _by_tensor(bindings: Mapping[str, WeightBinding]) -> list[dict[str, WeightBinding]]:
    """WeightBindings that share one checkpoint tensor, or stack of them, and encoding, to be read once."""
    groups: dict[object, dict[str, WeightBinding]] = {}
    for key, binding in bindings.items():
        groups.setdefault((binding.ref, binding.encoding), {})[key] = binding
    return list(groups.values())


def _write_tensor(
    data: BinaryIO,
    group: Mapping[str, WeightBinding],
    offsets: Mapping[str, int],
    sources: Mapping[Owner, TensorSource],
    encoder: TileEncoder,
    advance: Advance,
) -> None:
    first = next(iter(group.values()))
    owner, places = first.ref.owner, [(offsets[key], binding.stored.row_bytes) for key, binding in group.items()]
    above = 0
    for name, count in pieces(first.ref, first.shape[0]):
        _check_shape(sources[owner], owner, name, (count, *first.shape[1:]))
        start = 0
        for tile in encoder.encode(first.encoding, _chunks(sources[owner], name, (count, *first.shape[1:]))):
            _check_finite(tile, name, f"{owner} checkpoint, rows {start} to {start + tile.rows}")
            for (offset, row_bytes), binding in zip(places, group.values(), strict=True):
                data.seek(offset + (above + start) * row_bytes)
                data.write(tile.parts[binding.part].data)
                advance(tile.parts[binding.part].nbytes)
            start += tile.rows
        above += count


def _chunks(source: TensorSource, name: str, shape: Shape) -> Iterator[torch.Tensor]:
    """The tensor's rows, as many at once as `CHUNK_BYTES` hold in float32."""
    step = max(1, CHUNK_BYTES // (4 * math.prod(shape[1:])))
    return (source.rows(name, start, min(start + step, shape[0])) for start in range(0, shape[0], step))


def _check_shape(source: TensorSource, owner: Owner, name: str, wanted: Shape) -> None:
    stored = source.shapes().get(name)
    if stored != wanted:
        raise BuildError(
            f"tensor {name!r} has shape {stored}, the graph needs {wanted}"
            if stored
            else f"tensor {name!r} is missing",
            where=f"{owner} checkpoint",
            why="the config and the weights describe different models",
            fix="check that config.json belongs to these weights",
        )


def _check_finite(tile: Tile, name: str, where: str) -> None:
    if not tile.finite:
        raise BuildError(
            f"tensor {name!r} holds numbers that are not finite",
            where=where,
            why="the weights are damaged",
            fix="copy or download them again",
        )
    if not tile.finite_parts:
        raise BuildError(
            f"tensor {name!r} holds numbers that are not finite once encoded",
            where=where,
            why="they exceed float16",
            fix="build with --precision fp32",
        )
