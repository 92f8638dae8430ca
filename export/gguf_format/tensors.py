"""Weights of a GGUF file under transformers' names, dequantised by rows when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import ReaderTensor, get_tensor_name_map
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.quants import dequantize

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.safetensors_source import check_rows
from .reading import GgufFile

if TYPE_CHECKING:
    pass

PLAIN = {Kind.F32: torch.float32, Kind.F16: torch.float16, Kind.BF16: torch.bfloat16}


class GgufSource:
    """A `TensorSource` over a GGUF file.

    Only the rows asked for are read (the whole heads around them, where heads are interleaved).
    """

    def __init__(self, file: GgufFile, places: Mapping[str, str], interleaved: int | None = None) -> None:
        """`places` gives GGUF names transformers'; tensors that are not in it keep theirs, so that a check can list
        them.

        `interleaved` is the width of heads whose query and key rows lie in rotary pairs, None where they lie in halves.
        """
        self._file = file
        self._tensors = {places.get(name, name): tensor for name, tensor in file.tensors.items()}
        self._shapes = {
            name: tuple(int(size) for size in reversed(tensor.shape)) for name, tensor in self._tensors.items()
        }
        self._halved = interleaved

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's name and shape."""
        return self._shapes

    def kind(self, name: str) -> Kind | None:
        """How `name` is stored, None where there is no such tensor."""
        return self._tensors[name].tensor_type if name in self._tensors else None

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows `start:stop` of the first axis: float32 where the tensor is quantised, else its stored dtype.

        Raises `CheckpointError` for a name or rows that are not there, and for a storage type that cannot be decoded.
        """
        check_rows(self._shapes, name, start, stop)
        tensor = self._tensors[name]
        halved = self._halved if ".q_proj." in name or ".k_proj." in name else None
        if (
            len(self._shapes[name]) == 1
        ):  # a vector may be packed in bytes that are no rows: nothing in it can be sought by row
            whole = self._decode(tensor, self._stored(tensor, 0, len(tensor.data)))
            return whole[start:stop] if halved is None else whole[_interleaved(start, stop, halved)]
        if halved is None:
            return self._decode(tensor, self._stored(tensor, start, stop))
        first, last = start // halved * halved, -(-stop // halved) * halved
        return self._decode(tensor, self._stored(tensor, first, last)[_interleaved(start, stop, halved) - first])

    def _stored(self, tensor: ReaderTensor, start: int, stop: int) -> np.ndarray:
        """Rows as they lie in the file.

        Not through the reader's memory map, which would keep every page ever read in memory.
        """
        shape, items = tensor.data.shape, tensor.data.size // tensor.data.shape[0]
        with self._file.path.open("rb") as file:
            file.seek(tensor.data_offset + start * items * tensor.data.itemsize)
            found = np.fromfile(file, tensor.data.dtype, (stop - start) * items)
        if len(found) != (stop - start) * items:
            raise CheckpointError(
                f"{self._file.path.name} became shorter",
                where=str(self._file.path),
                why=f"tensor {tensor.name} ends early",
                fix="leave the file alone while it is read",
            )
        return found.reshape(stop - start, *shape[1:])

    def _decode(self, tensor: ReaderTensor, stored: np.ndarray) -> torch.Tensor:
        plain = PLAIN.get(tensor.tensor_type)
        if plain is not None:
            return torch.from_numpy(stored).view(plain)
        try:
            return torch.from_numpy(dequantize(stored, tensor.tensor_type))
        except NotImplementedError:
            raise CheckpointError(
                f"tensor {tensor.name} is stored as {tensor.tensor_type.name}",
                where=str(self._file.path),
                why="the gguf package cannot decode that type",
                fix="use a file of another quantisation, or the transformers directory",
            ) from None


def stored_dtype(source: GgufSource, name: str) -> str:
    """The dtype that rows of `name` come in: its own where it is a plain float, else float32; "unknown" where there is
    no such tensor.
    """
    kind = source.kind(name)
    return "unknown" if kind is None else str(PLAIN.get(kind, torch.float32)).removeprefix("torch.")


def places_of(architecture: ModuleType, layers: int, wanted: Iterable[str]) -> dict[str, str]:
    """GGUF name → transformers' name of every tensor in `wanted`, from the gguf package's own table."""
    return _places(architecture.__name__.rpartition(".")[2], layers, wanted)


def _places(architecture: str, layers: int, wanted: Iterable[str]) -> dict[str, str]:
    kind = next(
        kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture and isinstance(kind, MODEL_ARCH)
    )
    table = get_tensor_name_map(kind, layers)
    places = {}
    for name in wanted:
        found = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is not None:
            places[found] = name
    return places


def _interleaved(start: int, stop: int, head_dim: int) -> np.ndarray:
    """Where rows `start:stop` of a half-split projection are stored: row (half, j) of a head lies at 2 j + half."""
    head, row = np.divmod(np.arange(start, stop), head_dim)
    half, j = np.divmod(row, head_dim // 2)
    rows: np.ndarray = head * head_dim + 2 * j + half
    return rows
