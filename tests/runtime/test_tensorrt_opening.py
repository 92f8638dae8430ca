"""Opening a TensorRT bundle on the GPU of `trt_fakes`: who closes the device, and where compiled kernels are kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trt_fakes import ARCH, FakeDevice, FakePlan, bundle_file, manifest

from dflash_compile.runtime.backend import EngineOptions
from dflash_compile.runtime.backends.tensorrt import backend, pair
from dflash_compile.runtime.backends.tensorrt.plan import Library
from dflash_compile.runtime.cache import COMPILED, cache_size, clean
from dflash_compile.runtime.errors import IncompatibleError


class Gpu(FakeDevice):
    arch, name = ARCH, "RTX 4090"

    def kernel(self, cubin: Path, name: str) -> Callable[..., None]:
        return self.commit


class Opening:
    """A bundle, and what the last opening of it made."""

    def __init__(self) -> None:
        record = manifest()
        record.requires = SimpleNamespace(package="tensorrt-rtx", built_with="1.7")
        record.files = {"drafter/loop.sm89.cubin": "x"}
        self.bundle: Any = SimpleNamespace(manifest=record, root=Path("bundle"), file=bundle_file)
        self.device = Gpu()
        self.kernels: Path | None = None
        self.kept: Path | None = None

    def library(self, module: str, device: FakeDevice, kernels: Path | None) -> Any:
        self.kernels = kernels
        return SimpleNamespace(save_kernels=lambda cache: setattr(self, "kept", cache))

    def plan(self, library: Any, file: Path, record: Any, whole_graph: bool) -> FakePlan:
        owner = "target" if record in self.bundle.manifest.target.graphs else "drafter"
        return FakePlan(self.device, record, owner, lambda _: True, True)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    made = Opening()
    monkeypatch.setattr(backend, "CudaDevice", lambda: made.device)
    monkeypatch.setattr(backend, "Library", made.library)
    monkeypatch.setattr(backend, "Plan", made.plan)
    return made


def test_engines_close_the_device_they_were_opened_on(opening: Opening) -> None:
    engines = backend.open_engines(opening.bundle, EngineOptions())
    assert not opening.device.closed
    engines.close()
    assert opening.device.closed


def _fail(*_: Any) -> Any:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("place", "name", "options"),
    [
        (backend, "Library", {}),
        (backend, "Plan", {}),
        (Gpu, "pinned", {}),
        (Gpu, "record", {}),
        (Gpu, "kernel", {}),
        (pair, "_length", {}),
        (backend, "check_loop", {"device_loop": 4}),
    ],
)
def test_whatever_goes_wrong_closes_the_device(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(place, name, _fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        backend.open_engines(opening.bundle, EngineOptions(**options))
    assert opening.device.closed


def test_a_gpu_that_the_bundle_was_not_built_for_is_let_go(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gpu, "arch", "sm120")
    with pytest.raises(IncompatibleError, match="no engines for this GPU"):
        backend.open_engines(opening.bundle, EngineOptions())
    assert opening.device.closed


def test_compiled_kernels_are_kept_in_the_cache_that_was_asked_for(opening: Opening, tmp_path: Path) -> None:
    backend.open_engines(opening.bundle, EngineOptions(cache=tmp_path)).close()
    assert opening.kernels is not None
    assert opening.kernels.is_relative_to(tmp_path / COMPILED)
    assert opening.kept == tmp_path


def test_where_nothing_is_kept_no_kernel_is(opening: Opening) -> None:
    backend.open_engines(opening.bundle, EngineOptions(cache=None)).close()
    assert opening.kernels is None
    assert opening.kept is None


class RuntimeCache:
    """TensorRT's own, of which only its bytes matter."""

    def __init__(self) -> None:
        self.read: bytes | None = None

    def deserialize(self, content: bytes) -> None:
        self.read = content

    def serialize(self) -> bytes:
        return b"kernels"


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> RuntimeCache:
    """A module `tensorrt_rtx` whose engines share the returned cache."""
    cache, anything = RuntimeCache(), SimpleNamespace
    module = anything(
        Logger=type("Logger", (), {"ERROR": 0, "__init__": lambda self, level: None}),
        Runtime=lambda logger: None,
        ExecutionContextAllocationStrategy=anything(USER_MANAGED=1),
    )
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", module)  # type: ignore[arg-type]
    return cache


def _run(library: Library, cache: RuntimeCache) -> None:
    config = SimpleNamespace(
        set_execution_context_allocation_strategy=lambda strategy: None,
        create_runtime_cache=lambda: cache,
        set_runtime_cache=lambda given: None,
    )
    engine = SimpleNamespace(create_runtime_config=lambda: config, create_execution_context=lambda given: None)
    library.context(engine, False)


def test_kernels_are_found_again_until_the_cache_is_emptied(tensorrt: RuntimeCache, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    file = folder / COMPILED / "kind" / "bundle.bin"
    first = Library("tensorrt_rtx", FakeDevice(), file)
    _run(first, tensorrt)
    assert tensorrt.read is None
    first.save_kernels(folder)
    assert [path.name for path in file.parent.iterdir()] == ["bundle.bin"]
    _run(Library("tensorrt_rtx", FakeDevice(), file), tensorrt)
    assert tensorrt.read == b"kernels"
    assert clean(folder) == len(b"kernels")
    assert not file.exists()
    assert cache_size(folder / COMPILED) == 0


def test_a_cache_that_cannot_be_written_stops_nobody(tensorrt: RuntimeCache, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.write_text("a file in its place")
    library = Library("tensorrt_rtx", FakeDevice(), folder / COMPILED / "bundle.bin")
    _run(library, tensorrt)
    library.save_kernels(folder)
    assert folder.read_text() == "a file in its place"
