"""Core ML bundles without a Mac: everything but Core ML itself, which is played by the evaluator of saved packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apple import Library

from dflash_compile.runtime import load
from dflash_compile.runtime.backends import EngineOptions, coreml, find_backend
from dflash_compile.runtime.backends._memory import check_fits
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import BundleError, IncompatibleError, UsageError

TOKENS = 20
GIB = 1 << 30


@pytest.fixture
def path(apple_bundle: Callable[[str, str, str], Path]) -> Path:
    return apple_bundle("llama", "coreml", "fp16")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Library:
    library = Library()
    monkeypatch.setattr(coreml, "_import_library", lambda: library)
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "compiled"))
    return library


def test_drafting_changes_no_token(path: Path, library: Library) -> None:
    with load(path) as session:
        for prompt in ([5, 6, 7], list(range(10, 80))):
            plain = list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False))
            for block in (4, 3):
                assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=block)) == plain


def test_a_package_is_compiled_once_and_found_again(path: Path, library: Library) -> None:
    for _ in range(2):
        coreml.open_engines(open_bundle(path), EngineOptions()).close()
    assert [Path(package).name for package in library.compiled] == ["target.mlpackage", "drafter.mlpackage"]


def test_what_core_ml_cannot_load_is_an_error_that_names_the_compiled_form(path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("error code -14")

    monkeypatch.setattr(library.models, "CompiledMLModel", broken)
    with pytest.raises(BundleError, match="cannot load") as caught:
        coreml.open_engines(open_bundle(path), EngineOptions())
    assert "mlmodelc" in str(caught.value)
    assert "-14" in str(caught.value)


def test_a_closed_engine_says_so(path: Path, library: Library) -> None:
    engines = coreml.open_engines(open_bundle(path), EngineOptions())
    engines.close()
    with pytest.raises(UsageError, match="closed"):
        engines.drafter.draft(1, 0, 4)


def test_elsewhere_it_says_that_a_mac_is_needed(path: Path) -> None:
    with pytest.raises(IncompatibleError, match="on a Mac only"):
        coreml.open_engines(open_bundle(path), EngineOptions())


def test_a_bundle_that_would_swap_is_refused_with_figures() -> None:
    check_fits(4 * GIB, GIB, total=16 * GIB)
    with pytest.raises(IncompatibleError) as caught:
        check_fits(14 * GIB, GIB, total=16 * GIB)
    assert all(figure in str(caught.value) for figure in ("15.5 GiB", "12.0 GiB", "16.0 GiB", "weights 14.0 GiB", "cache 1.0 GiB"))


def test_the_memory_of_a_bundle_is_asked_before_it_is_loaded(path: Path, library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(coreml, "check_fits", lambda engines, states: asked.append((engines, states)))
    bundle = open_bundle(path)
    coreml.open_engines(bundle, EngineOptions()).close()
    length = bundle.manifest.target.graphs[0].inputs[-1].shape[2]
    assert asked == [(sum(bundle.manifest.sizes.values()), 2 * int(length) * 2 * 16 * (4 + 2))]


def test_the_backend_is_found_by_name() -> None:
    backend = find_backend("coreml")
    assert backend.installed().versions
    with pytest.raises(UsageError, match="provider"):
        backend.open_engines(None, EngineOptions(provider="cuda"))  # type: ignore[arg-type]
