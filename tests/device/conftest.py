"""What the tests on a card share: its architecture, and bundles built for it on the spot."""

from __future__ import annotations

from pathlib import Path

import models
import pytest

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter, open_target
from dflash_compile.runtime.backends.tensorrt.device import CudaDevice
from dflash_compile.runtime.errors import IncompatibleError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def arch() -> str:
    """The card's, as bundles name it."""
    try:
        device = CudaDevice()
    except IncompatibleError as fault:
        pytest.skip(f"no NVIDIA GPU here: {fault.why}")
    found = device.arch
    device.close()
    return found


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target with grouped heads and a drafter of block 4."""
    folder = tmp_path_factory.mktemp("tiny")
    target = models.write_target(folder / "target", "qwen3", num_hidden_layers=3)
    return target, models.write_drafter(folder / "drafter", target, block=4)


@pytest.fixture(scope="session")
def tiny_bundle(arch: str, tiny_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That pair at fp16, with a verify of two rows as well."""
    options = BuildOptions(backend="tensorrt", precision="fp16", context=90, engine={"arch": (arch,), "widths": (2,)})
    return build(*map(str, tiny_pair), tmp_path_factory.mktemp("bundles") / "tiny", options)


@pytest.fixture(scope="session", params=["fp16", "int4"])
def real_bundle(arch: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M and its drafter."""
    options = BuildOptions(backend="tensorrt", precision=request.param, context=1024, engine={"arch": (arch,)})
    pair = open_target("smollm2-135m"), open_drafter(ROOT / "artifacts" / "smollm2-135m-dflash")
    return build(*pair, tmp_path_factory.mktemp("bundles") / request.param, options)
