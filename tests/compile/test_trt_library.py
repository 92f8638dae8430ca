"""Which TensorRT compiles, and what is said where there is none."""

from __future__ import annotations

import pytest

from dflash_compile.compile.tensorrt import library
from dflash_compile.compile.tensorrt.library import FLAVOURS, choose_flavour
from dflash_compile.runtime.errors import IncompatibleError, UsageError


def only(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    """Let this machine have these modules and no other."""
    monkeypatch.setattr(library, "find_spec", lambda name: object() if name in modules else None)
    monkeypatch.setattr(library, "version", lambda package: FLAVOURS["rtx" if package == "tensorrt-rtx" else "trt"].supported)


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
