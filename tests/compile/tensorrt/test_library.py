"""Which TensorRT compiles, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import models
import pytest

from dflash_compile.cli.main import main
from dflash_compile.compile.tensorrt import library
from dflash_compile.compile.tensorrt.library import FLAVOURS, choose_flavour
from dflash_compile.runtime.errors import IncompatibleError, UsageError


def only(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let this machine have these modules and no other."""
    monkeypatch.setattr(library, "find_spec", lambda name: object() if name in modules else None)
    monkeypatch.setattr(
        library, "version", lambda package: FLAVOURS["rtx" if package == "tensorrt-rtx" else "trt"].supported
    )


def test_rtx_comes_first_and_the_other_where_it_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "tensorrt_rtx", "tensorrt")
    assert choose_flavour(None).name == "rtx"
    assert choose_flavour("trt").name == "trt"
    only(monkeypatch, "tensorrt")
    assert choose_flavour(None).name == "trt"


@pytest.mark.parametrize("name", [None, "rtx", "trt"])
def test_what_is_missing_is_told_with_how_to_get_it(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch)
    with pytest.raises(IncompatibleError) as failure:
        choose_flavour(name)
    assert failure.value.fix == FLAVOURS[name or "rtx"].install


def test_an_unknown_flavour_is_refused() -> None:
    with pytest.raises(UsageError, match="vanilla"):
        choose_flavour("vanilla")


def test_the_version_this_was_written_for_is_the_one_that_the_extra_installs() -> None:
    assert choose_flavour("rtx").installed == FLAVOURS["rtx"].supported


@pytest.fixture
def tensorrt_11(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other library, installed as far as anybody looks before it is used."""
    (tmp_path / "site" / "tensorrt").mkdir(parents=True)
    (tmp_path / "site" / "tensorrt" / "__init__.py").write_text("")
    (tmp_path / "site" / "tensorrt-11.4.0.dist-info").mkdir()
    (tmp_path / "site" / "tensorrt-11.4.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorrt\nVersion: 11.4.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


@pytest.mark.parametrize(("own", "says"), [(None, "there is none here"), ("sm86", "that is sm86")])
def test_a_library_that_compiles_for_its_own_gpu_says_so_before_anything_is_traced(
    own: str | None,
    says: str,
    tensorrt_11: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(library, "_own_arch", lambda: own)
    monkeypatch.setattr("dflash_compile.compile.tensorrt.backend.trace_all", lambda *_: pytest.fail("traced"))
    target = models.write_target(tmp_path / "target", "qwen3", num_hidden_layers=2)
    drafter = models.write_drafter(tmp_path / "drafter", target, layers=1, block=4, taps=(0,))
    asked = [
        "build",
        str(target),
        str(drafter),
        "-o",
        str(tmp_path / "bundle"),
        "--backend",
        "tensorrt",
        "--flavour",
        "trt",
        "--arch",
        "sm89",
    ]
    assert main([*asked, "-q"]) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert says in said
    assert "--flavour rtx" in said
    assert not (tmp_path / "bundle").exists()
    library.check_device(choose_flavour("rtx"), ["sm120"])
    monkeypatch.setattr(library, "_own_arch", lambda: "sm89")
    library.check_device(choose_flavour("trt"), ["sm89"])
