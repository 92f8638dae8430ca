"""What the runtime asks of a GPU, and cuda-core behind it.

Everything else about TensorRT bundles is written against `Device`, not against CUDA.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import IncompatibleError

_INT = np.dtype(np.int32).itemsize
_STAGED = 64 << 20
"""bytes of a file on their way to the device at once"""


class Launch(Protocol):
    """Work that can be started again and again."""

    def __call__(self) -> None: ...


class Device(Protocol):
    """One GPU and one stream, on which everything happens in the order it was asked for."""

    @property
    def stream(self) -> int:
        """Its handle, for libraries that put work on it themselves."""
        ...

    def allocate(self, size: int) -> int:
        """Address of `size` zeroed bytes, which live as long as the device."""
        ...

    def load(self, file: Path, address: int) -> None:
        """The bytes of `file` to `address`. They are there when this returns."""
        ...

    def pinned(self, count: int) -> NDArray[np.int32]:
        """`count` integers of host memory that the device writes into by itself."""
        ...

    def write(self, address: int, values: Sequence[int]) -> None:
        """int32 `values` to `address`, in order with everything else."""
        ...

    def read_into(self, pinned: NDArray[np.int32], address: int) -> None:
        """As many integers as `pinned` has, from `address`, in order with everything else; there once a later mark has
        passed.
        """
        ...

    def kernel(self, cubin: Path, name: str) -> Callable[[Sequence[int]], None]:
        """A function that puts one launch of the kernel, one thread, on the stream; its arguments are addresses or
        integers, all 64 bits.
        """
        ...

    def record(self, work: Callable[[], None]) -> Launch:
        """Everything that `work` puts on the stream, as one graph. Nothing of it runs now."""
        ...

    def record_loop(self, before: Callable[[], None], body: Callable[[int], None], after: Callable[[], None]) -> Launch:
        """One graph as well, in which what `body` puts on the stream runs again and again, at least once, until a
        kernel of it says that it is enough.

        `body` is given the handle by which such a kernel says so. Raises `IncompatibleError` where the driver or the
        work allows no such graph; the device is as it was then.
        """
        ...

    def mark(self) -> Callable[[], None]:
        """A function that waits until everything asked for so far is done."""
        ...

    def close(self) -> None:
        """Wait for the stream and free all memory."""
        ...


class CudaDevice:
    """The first GPU, by cuda-core. Raises `IncompatibleError` where there is no library, driver or GPU."""

    def __init__(self) -> None:
        self._core = _import_core()
        try:
            self._device = self._core.Device()
            self._device.set_current()
        except Exception as fault:  # the library raises its driver's errors as they are
            raise IncompatibleError(
                "no NVIDIA GPU can be used here",
                why=str(fault),
                fix=(
                    "install the newest NVIDIA driver and run `nvidia-smi`; with no such GPU build with --backend"
                    " onnxruntime"
                ),
            ) from fault
        self._stream = self._device.create_stream()
        self._pinned_memory = self._core.LegacyPinnedMemoryResource()
        self._kept: list[Any] = []
        self._staged: deque[Any] = deque(maxlen=64)
        self._modules: list[Any] = []
        self._target: Any = self._stream

    @property
    def arch(self) -> str:
        """Its compute capability as bundles name it: sm89."""
        return "sm{}{}".format(*self._device.compute_capability)

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self._device.name)

    @property
    def stream(self) -> int:
        return int(self._handle().handle)

    def allocate(self, size: int) -> int:
        buffer = self._device.allocate(max(size, 1), stream=self._stream)
        buffer.fill(0, stream=self._stream)
        self._kept.append(buffer)
        return int(buffer.handle)

    def load(self, file: Path, address: int) -> None:
        size = min(_STAGED, file.stat().st_size)
        staged = self._pinned_memory.allocate(size)
        start = int(staged.handle)
        view = (ctypes.c_ubyte * size).from_address(start)
        with file.open("rb") as content:
            while count := content.readinto(view):
                part = self._core.Buffer.from_handle(start, count, owner=staged)
                self._core.Buffer.from_handle(address, count, owner=self).copy_from(part, stream=self._stream)
                self._stream.sync()  # the staging memory is filled again
                address += count
        staged.close()

    def pinned(self, count: int) -> NDArray[np.int32]:
        buffer = self._pinned_memory.allocate(count * _INT)
        self._kept.append(buffer)
        return _integers(buffer, count)

    def write(self, address: int, values: Sequence[int]) -> None:
        # The staging memory must not change before the copy has run: each write has its own.
        staged = self._pinned_memory.allocate(len(values) * _INT)
        _integers(staged, len(values))[:] = values
        self._view(address, len(values)).copy_from(staged, stream=self._target)
        self._kept_until_done(staged)

    def read_into(self, pinned: NDArray[np.int32], address: int) -> None:
        host = self._core.Buffer.from_handle(pinned.ctypes.data, pinned.nbytes, owner=pinned)
        self._view(address, len(pinned)).copy_to(host, stream=self._target)

    def kernel(self, cubin: Path, name: str) -> Callable[[Sequence[int]], None]:
        module = self._core.ObjectCode.from_cubin(cubin.read_bytes())
        self._modules.append(module)
        kernel, config = module.get_kernel(name), self._core.LaunchConfig(grid=1, block=1)

        def launch(arguments: Sequence[int]) -> None:
            self._core.launch(self._target, config, kernel, *(np.uint64(argument) for argument in arguments))

        return launch

    def record(self, work: Callable[[], None]) -> Launch:
        builder = self._device.create_graph_builder()
        self._build(builder, work)
        return self._finished(builder)

    def record_loop(self, before: Callable[[], None], body: Callable[[int], None], after: Callable[[], None]) -> Launch:
        builder = self._device.create_graph_builder()

        def work() -> None:
            before()
            again = builder.create_condition(default_value=1)
            self._build(builder.while_loop(again), lambda: body(int(again.handle)))
            after()

        try:
            self._build(builder, work)
            return self._finished(builder)
        except Exception as fault:  # each library's own, or of a graph that is no longer being recorded because of one
            raise IncompatibleError(
                "this GPU's driver cannot repeat a cycle by itself",
                why=str(fault),
                fix="update the NVIDIA driver (conditional nodes came with CUDA 12.3), or leave out device_loop",
            ) from fault

    def _build(self, builder: Any, work: Callable[[], None]) -> None:
        """Record what `work` puts on the stream into `builder`, which may be a part of another."""
        builder.begin_building()
        outer, self._target = self._target, builder
        try:
            work()
        finally:
            self._target = outer
            builder.end_building()

    def _finished(self, builder: Any) -> Launch:
        graph = builder.complete()
        graph.upload(self._stream)
        self._kept.append(graph)
        return lambda: graph.launch(self._stream)

    def mark(self) -> Callable[[], None]:
        event = self._stream.record()
        return lambda: event.sync()

    def close(self) -> None:
        self._stream.sync()
        for thing in reversed(self._kept):
            thing.close()
        self._kept.clear()

    def _handle(self) -> Any:
        return self._target.stream if self._target is not self._stream else self._stream

    def _view(self, address: int, count: int) -> Any:
        return self._core.Buffer.from_handle(address, count * _INT, owner=self)

    def _kept_until_done(self, staged: Any) -> None:
        # Pinned memory is freed at once when it is let go: hold the last few, of copies that may not have run yet.
        self._staged.append(staged)


def _integers(buffer: Any, count: int) -> NDArray[np.int32]:
    """Host memory of a buffer as an array to be written, which DLPack does not promise."""
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(int(buffer.handle)))


def _import_core() -> Any:
    try:
        return import_module("cuda.core")
    except ImportError as fault:
        raise IncompatibleError(
            "cuda-core cannot be imported", why=str(fault), fix="run: pip install 'dflash-compile[rtx]'"
        ) from fault
