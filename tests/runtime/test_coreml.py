"""Core ML bundles without a Mac: everything but Core ML itself, which is played by the evaluator of saved packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apple import Library

from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.backends.apple.host_cache import HostCache
from dflash_compile.runtime.backends.coreml import backend as coreml
from dflash_compile.runtime.backends.coreml.memory import check_fits
from dflash_compile.runtime.bundle.manifest import GraphRecord, PortRecord
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.cache import COMPILED, clean
from dflash_compile.runtime.errors import BundleError, IncompatibleError, UsageError

TOKENS = 20
GIB = 1 << 30


@pytest.fixture
def path(apple_bundle: Callable[..., Path]) -> Path:
    return apple_bundle("llama", "coreml", "fp16")


@pytest.fixture
def hosted(apple_bundle: Callable[..., Path]) -> Path:
    """The same pair with caches that the host keeps."""
    return apple_bundle("llama", "coreml", "fp16", "ane-io")


def test_drafting_changes_no_token(path: Path, library: Library) -> None:
    with load(path) as session:
        for prompt in ([5, 6, 7], list(range(10, 80))):
            plain = list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False))
            for block in (4, 3):
                assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=block)) == plain


def test_a_cache_of_the_hosts_gives_the_same_tokens(path: Path, hosted: Path, library: Library) -> None:
    prompt = list(range(10, 80))
    with load(path) as session, load(hosted) as other:
        plain = list(session.tokens(prompt, max_new_tokens=12, draft=False))
        assert list(other.tokens(prompt, max_new_tokens=12, draft=False)) == plain
        assert list(other.tokens(prompt, max_new_tokens=12, block=4)) == plain


def test_a_bundle_runs_where_its_cache_policy_wants_it(path: Path, hosted: Path, library: Library) -> None:
    for bundle, units in ((path, "CPU_AND_GPU"), (hosted, "CPU_AND_NE")):
        engines = coreml.open_engines(open_bundle(bundle), EngineOptions())
        chain: Any = engines.target._functions  # type: ignore[attr-defined]
        (package,) = chain._engines.values()
        loaded = package._functions if isinstance(package, HostCache) else package
        assert {model.units for model in loaded._functions.values()} == {units}
        engines.close()


class Rows:
    """Functions that answer with rows of their own number, and keep what they were given."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def call(self, function: str, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self.seen.append(feeds["cache"].copy())
        return {} if function == "draft" else {"rows": np.full((2, 1, 4, 1), len(self.seen), np.float16)}

    def close(self) -> None:
        self.seen = []


def test_only_accepted_rows_reach_a_cache_of_the_hosts() -> None:
    port = PortRecord(name="cache", dtype="float16", shape=[2, 1, 16, 1])
    graph = GraphRecord(role="verify", file="f", rows=4, inputs=[port], outputs=[], caches=[])
    record: Any = SimpleNamespace(name="tiny", graphs=[graph])
    functions = Rows()
    cache = HostCache(record, functions)
    random, wanted, position = np.random.default_rng(3), [0.0] * 16, 0
    for number in range(1, 40):
        cache.call("verify", {"position": np.array([position], np.int32)})
        assert functions.seen[-1][0, 0, :, 0].tolist() == wanted
        if number % 3 == 0:
            cache.call("draft", {"position": np.array([position], np.int32)})
            continue  # nothing of the call before it was accepted
        accepted = int(random.integers(1, 5))
        wanted[position : position + accepted] = [float(len(functions.seen))] * accepted
        position += accepted
        if position > 12:
            cache.call("draft", {"position": np.array([position], np.int32)})
            position = int(random.integers(0, 4))  # a new request: rows stay until they are overwritten
    cache.close()
    assert not cache.cache.size


def test_a_package_is_compiled_once_and_found_again(path: Path, library: Library, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for _ in range(2):
        coreml.open_engines(open_bundle(path), EngineOptions(cache=cache)).close()
    assert [Path(package).name for package in library.compiled] == ["target.mlpackage", "drafter.mlpackage"]
    assert [place.suffix for place in (cache / COMPILED).iterdir()] == [".mlmodelc"] * 2
    assert clean(cache) > 0
    coreml.open_engines(open_bundle(path), EngineOptions(cache=cache)).close()
    assert len(library.compiled) == 4, "the cache was emptied"


@pytest.mark.parametrize("asked", ["off", "a file"])
def test_what_is_compiled_where_nothing_can_be_kept_goes_with_the_engines(
    path: Path, library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str
) -> None:
    (tmp_path / "a file").write_text("in its place")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", asked)
    monkeypatch.chdir(tmp_path)
    with load(path) as session:
        assert len(list((tmp_path / "temporary").iterdir())) == 2
        assert len(list(session.tokens([5, 6, 7], max_new_tokens=4))) == 4
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(place.name for place in tmp_path.iterdir()) == ["a file", "temporary"], "no folder called off"


def test_what_core_ml_cannot_load_is_an_error_that_names_the_compiled_form(
    path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert all(
        figure in str(caught.value)
        for figure in ("15.5 GiB", "12.0 GiB", "16.0 GiB", "weights 14.0 GiB", "cache 1.0 GiB")
    )


def test_the_memory_of_a_bundle_is_asked_before_it_is_loaded(
    path: Path, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
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
