"""Every call that the TensorRT runtime makes of cuda-core and of TensorRT, against their own signatures.

Nothing runs: no GPU is needed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda_strict import Library as StrictCore
from cuda_strict import strict_trt

from dflash_compile.runtime.backends.tensorrt import device as _trt_device
from dflash_compile.runtime.backends.tensorrt import plan as _trt_plan
from dflash_compile.runtime.backends.tensorrt.device import CudaDevice
from dflash_compile.runtime.bundle.manifest import GraphRecord, PortRecord
from dflash_compile.runtime.errors import BundleError, IncompatibleError

core = pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'dflash-compile[rtx]'")
tensorrt = pytest.importorskip(
    "tensorrt_rtx", reason="tensorrt-rtx is not installed: pip install 'dflash-compile[rtx]'"
)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> StrictCore:
    library = StrictCore(core)
    monkeypatch.setattr(_trt_device, "_import_core", lambda: library)
    return library


def test_the_device_calls_cuda_core_as_it_wants_to_be_called(strict: StrictCore, tmp_path: Path) -> None:
    device = CudaDevice()
    assert (device.arch, device.name, device.stream) == ("sm89", "a card", 7)
    address, pinned = device.allocate(64), device.pinned(4)
    pinned[:] = 5
    device.write(address, [1, 2, 3])
    device.read_into(pinned, address)
    (tmp_path / "weights.bin").write_bytes(bytes(range(48)))
    device.load(tmp_path / "weights.bin", address)
    (tmp_path / "commit.cubin").write_bytes(b"cubin")
    launch = device.kernel(tmp_path / "commit.cubin", "commit")
    strict.calls.clear()
    graph = device.record(lambda: (launch([address, 1]), device.read_into(pinned, address)))  # type: ignore[arg-type, return-value]
    assert [name for name in strict.calls if name.startswith(("GraphBuilder", "launch", "Graph."))] == [
        "GraphBuilder.begin_building",
        "launch",
        "GraphBuilder.end_building",
        "GraphBuilder.complete",
        "Graph.upload",
    ]
    graph()
    device.mark()()
    device.close()
    assert {"Graph.launch", "Stream.record", "Event.sync", "Stream.sync", "Graph.close", "Buffer.close"} <= set(
        strict.calls
    )


def test_a_loop_is_recorded_as_cuda_core_wants_it(strict: StrictCore, tmp_path: Path) -> None:
    device = CudaDevice()
    address, pinned, handles = device.allocate(64), device.pinned(4), list[int]()
    (tmp_path / "loop.cubin").write_bytes(b"cubin")
    launch = device.kernel(tmp_path / "loop.cubin", "commit_loop")
    strict.calls.clear()

    def body(handle: int) -> None:
        handles.append(handle)
        assert device.stream == 7, "the builder's own stream is what other libraries get"
        launch([address, handle])

    graph = device.record_loop(lambda: launch([address]), body, lambda: device.read_into(pinned, address))
    assert [name for name in strict.calls if name.startswith(("GraphBuilder", "launch", "Graph.", "Buffer.copy"))] == [
        "GraphBuilder.begin_building",
        "launch",
        "GraphBuilder.create_condition",
        "GraphBuilder.while_loop",
        "GraphBuilder.begin_building",
        "launch",
        "GraphBuilder.end_building",
        "Buffer.copy_to",
        "GraphBuilder.end_building",
        "GraphBuilder.complete",
        "Graph.upload",
    ]
    assert handles == [1 << 63]
    graph()
    device.close()


def test_a_loop_that_cannot_be_recorded_leaves_the_device_as_it_was(strict: StrictCore) -> None:
    device = CudaDevice()

    def refused(_: int) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    stream = device._target
    with pytest.raises(IncompatibleError, match="device_loop") as failure:
        device.record_loop(lambda: None, refused, lambda: None)
    assert "not permitted" in failure.value.why
    assert device._target is stream
    assert strict.calls.count("GraphBuilder.end_building") == 2
    device.record(lambda: None)


def test_what_it_does_not_have_is_noticed(strict: StrictCore) -> None:
    device = strict.Device()
    with pytest.raises(AttributeError):
        _ = device.allocate_async
    with pytest.raises(TypeError):
        device.allocate(64)  # the stream is missing
    with pytest.raises(AssertionError, match="takes Stream"):
        device.create_graph_builder().begin_building().end_building().complete().launch(device.create_graph_builder())


def record(profile: int | None) -> GraphRecord:
    ports = [PortRecord(name=name, dtype="int32", shape=[1, 4]) for name in ("block", "tokens")]
    return GraphRecord(
        role="verify",
        file="verify.plan",
        rows=4,
        inputs=ports[:1],
        outputs=ports[1:],
        caches=[],
        arch="sm89",
        profile=profile,
    )


@pytest.mark.parametrize("profile", [None, 1])
def test_plans_call_tensorrt_as_it_wants_to_be_called(
    profile: int | None, strict: StrictCore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = strict_trt(tensorrt).of
    names, chosen = ["block", "tokens", "query_0"], list[Any]()
    context = make(
        tensorrt.IExecutionContext,
        get_tensor_shape=lambda _: (1, 2, 4, 16),
        set_optimization_profile_async=lambda index, _: chosen.append(index) or True,
        set_input_shape=lambda name, shape: chosen.append((name, shape)) or True,
        set_tensor_address=lambda *_: True,
        execute_async_v3=lambda _: True,
        is_stream_capturable=lambda _: True,
    )
    jit = make(tensorrt.IRuntimeCache, serialize=lambda: b"kernels", deserialize=lambda _: True)
    config = make(tensorrt.IRuntimeConfig, create_runtime_cache=lambda: jit, set_runtime_cache=lambda _: True)
    engine = make(
        tensorrt.ICudaEngine,
        num_io_tensors=len(names),
        get_tensor_name=lambda index: names[index],
        device_memory_size_v2=64,
        create_runtime_config=lambda: config,
        create_execution_context=lambda _: context,
    )
    opened = list[bytes]()
    runtime = make(tensorrt.Runtime, deserialize_cuda_engine=lambda data: opened.append(data) or engine)
    library = SimpleNamespace(**{name: getattr(tensorrt, name) for name in dir(tensorrt) if not name.startswith("_")})
    library.Runtime = lambda _: runtime
    library.Logger = type("Logger", (), {"ERROR": tensorrt.Logger.ERROR, "__init__": lambda self, _: None})
    monkeypatch.setattr(_trt_plan, "import_module", lambda _: library)
    (tmp_path / "verify.plan").write_bytes(b"plan")
    (tmp_path / "jit.bin").write_bytes(b"kept")
    found = _trt_plan.Library("tensorrt_rtx", CudaDevice(), tmp_path / "jit.bin")
    plan = _trt_plan.Plan(found, tmp_path / "verify.plan", record(profile))
    _trt_plan.Plan(found, tmp_path / "verify.plan", record(profile), whole_graph=True)
    assert opened == [b"plan"], "one engine for all its widths"
    assert chosen == ([] if profile is None else [1, ("block", (1, 4))] * 2)
    assert (plan.capturable, plan.scratch, plan.bytes("block")) == (True, 64, 16)
    plan.give_scratch(1 << 12, 64)
    plan.bind("block", 1 << 13)
    plan.enqueue()
    found.save_kernels(tmp_path)
    assert (tmp_path / "jit.bin").read_bytes() == b"kernels"
    names.remove("tokens")
    engine._values["num_io_tensors"] = len(names)
    with pytest.raises(BundleError, match="tokens"):
        _trt_plan.Plan(found, tmp_path / "verify.plan", record(profile))


def test_the_commit_kernel_s_arguments_are_what_a_launch_takes() -> None:
    """Scalars of numpy go into a kernel's parameters as they are; cuda-core's own code for that needs no device."""
    from cuda.core._kernel_arg_handler import ParamHolder

    assert ParamHolder([np.uint64(5), np.uint64(1 << 63)]).ptr
