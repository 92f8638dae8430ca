"""One TensorRT engine: loaded, its ports bound to addresses, its scratch memory given, its kernels made ready."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, Protocol

from ...bundle.manifest import GraphRecord
from ...cache import prepare, write
from ...errors import BundleError, IncompatibleError
from .device import Device
from .library import INSTALL

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8, "int8": 1}


class Runner(Protocol):
    """An engine on a device."""

    @property
    def capturable(self) -> bool:
        """Whether a graph of the device can take its runs up."""
        ...

    def bind(self, port: str, address: int) -> None:
        """Where a port's memory is, from the next run on."""
        ...

    def enqueue(self) -> None:
        """Put one run on the device's stream."""
        ...


class Library:
    """TensorRT's runtime on one device. `scratch` is shared by all engines: they run one after another."""

    def __init__(self, module: str, device: Device, kernels: Path | None = None) -> None:
        """`kernels` is the file of what was compiled for this device before, there or not."""
        try:
            self.trt: Any = import_module(module)
        except ImportError as fault:
            raise IncompatibleError("TensorRT cannot be imported", why=str(fault), fix=f"run: {INSTALL}") from fault
        self.device, self._file = device, kernels
        self._engines: dict[Path, Any] = {}
        self._logger = self.trt.Logger(self.trt.Logger.ERROR)
        self._runtime = self.trt.Runtime(self._logger)
        self._cache: Any = None

    def engine(self, file: Path) -> Any:
        """The deserialised plan, once for all its widths.

        Raises `IncompatibleError` where this library or GPU cannot run it.
        """
        if file in self._engines:
            return self._engines[file]
        engine = self._runtime.deserialize_cuda_engine(file.read_bytes())
        if engine is None:
            raise IncompatibleError(
                "TensorRT cannot load an engine of the bundle",
                where=str(file),
                why="it was compiled by another version, or for another GPU",
                fix="build the bundle again with this machine's tensorrt-rtx, and update the driver",
            )
        self._engines[file] = engine
        return engine

    def context(self, engine: Any, whole_graph: bool) -> Any:
        """An execution context that allocates nothing by itself; with `whole_graph` TensorRT captures what it runs."""
        config = engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(self.trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        # Kernels that are made for a profile later, while others run, would not be those that were tried and captured.
        if hasattr(self.trt, "DynamicShapesKernelSpecializationStrategy"):
            config.dynamic_shapes_kernel_specialization_strategy = (
                self.trt.DynamicShapesKernelSpecializationStrategy.EAGER
            )
        if whole_graph:
            config.cuda_graph_strategy = self.trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        if self._cache is None:
            self._cache = config.create_runtime_cache()
            if self._file is not None and self._file.is_file():
                self._cache.deserialize(self._file.read_bytes())  # one it cannot read is one it does without
        config.set_runtime_cache(self._cache)
        return engine.create_execution_context(config)

    def save_kernels(self, cache: Path) -> None:
        """Keep in the folder `cache` what was compiled for this device, so that the next start need not. Not being able
        to is no fault.
        """
        if self._file is not None and self._cache is not None:
            with suppress(OSError):
                prepare(cache)
                self._file.parent.mkdir(parents=True, exist_ok=True)
                write(self._file, bytes(self._cache.serialize()))


class Plan:
    """A loaded engine with every port bound.

    Ports that the manifest does not list are outputs that only shape the engine: they get memory of their own.
    """

    def __init__(self, library: Library, file: Path, record: GraphRecord, whole_graph: bool = False) -> None:
        self._device, engine = library.device, library.engine(file)
        self._library = library  # its runtime must outlive the engine
        self._engine, self._context = engine, library.context(engine, whole_graph)
        self.ports = {port.name: port for port in (*record.inputs, *record.outputs)}
        found = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        if missing := sorted(self.ports.keys() - found):
            raise BundleError(
                f"an engine lacks the ports {', '.join(missing)}",
                where=str(file),
                why="the manifest lists them",
                fix="build the bundle again",
            )
        if record.profile is not None:
            self._choose(record)
        for name in sorted(found - self.ports.keys()):
            size = prod(self._context.get_tensor_shape(name)) * 4
            self.bind(name, library.device.allocate(size))

    def _choose(self, record: GraphRecord) -> None:
        """The width of `record`, of the several that the engine was compiled for."""
        stream = self._device.stream
        chosen = self._context.set_optimization_profile_async(record.profile, stream)
        self._device.mark()()
        if not chosen or not all(self._context.set_input_shape(port.name, tuple(port.shape)) for port in record.inputs):
            raise BundleError(
                f"TensorRT has no {record.role} of {record.rows} rows in the engine",
                where=record.file,
                fix="build the bundle again",
            )

    @property
    def scratch(self) -> int:
        return int(self._engine.device_memory_size_v2)

    @property
    def capturable(self) -> bool:
        return bool(self._context.is_stream_capturable(self._device.stream))

    def bytes(self, port: str) -> int:
        """Size of a port's memory."""
        sizes = [size for size in self.ports[port].shape if isinstance(size, int)]
        return prod(sizes) * _BYTES[self.ports[port].dtype]

    def give_scratch(self, address: int, size: int) -> None:
        """Memory for what the engine computes in between."""
        self._context.set_device_memory(address, size)

    def bind(self, port: str, address: int) -> None:
        if not self._context.set_tensor_address(port, address):
            raise BundleError(f"TensorRT refuses the address of {port}", fix="build the bundle again")

    def enqueue(self) -> None:
        if not self._context.execute_async_v3(self._device.stream):
            raise IncompatibleError(
                "TensorRT cannot run an engine",
                why="it gave no reason",
                fix="update the NVIDIA driver, or build the bundle again",
            )
