"""One ONNX Runtime session with all its memory reserved: buffers at fixed addresses, one binding kept for every shape
it has run.

A run writes a few integers in place and starts; nothing is allocated and nothing copied. Cache inputs and outputs are
the same memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...bundle.manifest import GraphRecord, PortRecord
from ...errors import BundleError, IncompatibleError

_DTYPES: Mapping[str, Any] = {"float32": np.float32, "float16": np.float16, "int32": np.int32, "int64": np.int64}
_ORT_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


class Buffer:
    """A fixed piece of zeroed memory, on the host or on a device.

    Ports see its front, in a shape of theirs: `Graph.bind`.
    """

    def __init__(self, library: Any, device: str, shape: tuple[int, ...], dtype: str) -> None:
        if dtype not in _DTYPES:
            raise IncompatibleError(
                f"tensors of {dtype} cannot be handed to ONNX Runtime from here",
                fix="build the bundle with another precision",
            )
        self.device, self.shape, self.dtype = device, shape, _DTYPES[dtype]
        zeros = _aligned_zeros(shape, self.dtype)
        self._value = library.OrtValue.ortvalue_from_numpy(zeros, device, 0)
        self._host = zeros if device == "cpu" else None
        self._staged: NDArray[Any] | None = None
        self.address: int = self._value.data_ptr()

    def behind(self, count: int) -> Place:
        """The place after its first `count` elements."""
        return Place(self, self.address + count * np.dtype(self.dtype).itemsize)

    def write(self, values: Sequence[int] | NDArray[Any]) -> None:
        """`values` to its front; what lies behind them stays."""
        if self._host is not None:
            self._host.reshape(-1)[: len(values)] = values
            return
        if self._staged is None:
            self._staged = np.zeros(self.shape, self.dtype)
        self._staged.reshape(-1)[: len(values)] = values
        self._value.update_inplace(self._staged)

    def read(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Its front as an array of `shape`: a view on the host, a copy from a device."""
        whole: NDArray[Any] = self._host if self._host is not None else self._value.numpy()
        return whole.reshape(-1)[: prod(shape)].reshape(shape)


@dataclass(frozen=True)
class Place:
    """A place inside a buffer, which it keeps alive."""

    buffer: Buffer
    address: int

    @property
    def device(self) -> str:
        return self.buffer.device

    @property
    def dtype(self) -> Any:
        return self.buffer.dtype


View = tuple[Buffer | Place, tuple[int, ...]]
"""where a port's memory starts, and the shape in which it is seen"""


class Graph:
    """A session and its bindings."""

    def __init__(self, session: Any, file: Path, record: GraphRecord) -> None:
        """`session` was opened from `file`, or from another form of it.

        Raises `BundleError` where its ports are not those of `record`.
        """
        self._session, self._file = session, file
        self._bindings: dict[tuple[int, ...], tuple[Any, list[Buffer | Place]]] = {}
        self.ports = {port.name: port for port in (*record.inputs, *record.outputs)}
        self._caches = record.caches
        self.rings = frozenset(record.rings)
        self._widest = record.widest
        _check_ports(file, record.inputs, self._session.get_inputs())
        _check_ports(file, record.outputs, self._session.get_outputs())

    def cache_buffers(self, library: Any, device: str) -> dict[str, Buffer]:
        """Zeroed memory for every cache of this graph, by input name.

        Raises `IncompatibleError` where they are larger than the machine's memory.
        """
        needed = sum(_bytes(self.ports[name]) for name, _ in self._caches)
        if device == "cpu" and needed > (there := _memory()):
            raise IncompatibleError(
                f"the caches of this bundle take {needed >> 20} MiB; this machine has {there >> 20} MiB",
                where=str(self._file),
                fix="build the bundle with a smaller --max-context",
            )
        return {
            name: Buffer(library, device, _static(self.ports[name]), self.ports[name].dtype) for name, _ in self._caches
        }

    def narrowed(self, rows: int) -> int:
        """`rows`, or the most that a call may have where rings limit them."""
        return rows if self._widest is None else min(rows, self._widest)

    def prepared(self, key: tuple[int, ...]) -> bool:
        """Whether a binding under `key` exists."""
        return key in self._bindings

    def bind(
        self,
        key: tuple[int, ...],
        inputs: Mapping[str, View],
        outputs: Mapping[str, View],
        caches: Mapping[str, Buffer],
    ) -> None:
        """Keep a binding under `key`: each port to the front of a buffer, seen in a shape; each cache in and out to the
        same buffer.
        """
        bound = {*inputs, *outputs, *(name for pair in self._caches for name in pair)}
        if missing := sorted(self.ports.keys() - bound):
            raise BundleError(
                f"an engine has ports that nothing is bound to: {', '.join(missing)}",
                where=str(self._file),
                why="caches that the manifest leaves out, or a graph for another use",
                fix="build the bundle again",
            )
        binding = self._session.io_binding()
        shared = {name: (caches[name], caches[name].shape) for name, _ in self._caches}
        for name, (buffer, shape) in {**inputs, **shared}.items():
            binding.bind_input(name, buffer.device, 0, buffer.dtype, shape, buffer.address)
        for name, (buffer, shape) in {**outputs, **{out: shared[name] for name, out in self._caches}}.items():
            binding.bind_output(name, buffer.device, 0, buffer.dtype, shape, buffer.address)
        # A binding knows addresses only: the buffers must outlive a run, also where another thread closes the engine
        # meanwhile.
        self._bindings[key] = binding, [buffer for buffer, _ in (*inputs.values(), *outputs.values(), *shared.values())]

    def move(self, key: tuple[int, ...], name: str, view: View) -> None:
        """Let output `name` under `key` go to another place of the buffer it was bound to."""
        place, shape = view
        self._bindings[key][0].bind_output(name, place.device, 0, place.dtype, shape, place.address)

    def run(self, key: tuple[int, ...]) -> None:
        """Run the graph on the memory bound under `key`."""
        self._session.run_with_iobinding(self._bindings[key][0])


def _aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    # numpy aligns to 16 bytes; kernels read cache lines of 64.
    size = prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    aligned: NDArray[Any] = raw[start : start + size].view(dtype)
    return aligned.reshape(shape)


def _bytes(port: PortRecord) -> int:
    return prod(_static(port)) * int(np.dtype(_DTYPES.get(port.dtype, np.float32)).itemsize)


def _memory() -> int:
    """Bytes of memory in this machine; where the system does not tell, more than any has."""
    try:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return 1 << 62


def _static(port: PortRecord) -> tuple[int, ...]:
    sizes = tuple(size for size in port.shape if isinstance(size, int))
    if len(sizes) != len(port.shape):
        raise BundleError(
            f"the cache {port.name} has no fixed size", where=str(port.shape), fix="build the bundle again"
        )
    return sizes


def _check_ports(file: Path, promised: list[PortRecord], found: Any) -> None:
    """The session's ports are the manifest's: names, element types, ranks, and sizes where both are fixed."""
    real = {port.name: port for port in found}
    for port in promised:
        other = real.pop(port.name, None)
        said = f"{port.dtype} {list(port.shape)}"
        seen = "nothing" if other is None else f"{_ORT_TYPES.get(other.type, other.type)} {other.shape}"
        if other is None or _ORT_TYPES.get(other.type) != port.dtype or not _fits(port.shape, other.shape):
            raise BundleError(
                f"an engine's port {port.name} is not what the manifest says",
                where=str(file),
                why=f"manifest: {said}; engine: {seen}",
                fix="build the bundle again",
            )
    if real:
        raise BundleError(
            f"an engine has ports the manifest does not list: {', '.join(sorted(real))}",
            where=str(file),
            fix="build the bundle again",
        )


def _fits(promised: list[int | str], found: list[int | str | None]) -> bool:
    return len(promised) == len(found) and all(
        not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(promised, found, strict=True)
    )
