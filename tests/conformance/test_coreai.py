"""Core AI bundles, which run on Linux: the whole answer of one equals that of the ONNX Runtime bundle of the same pair,
token for token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import models
import pytest
from apple import CONTEXT

from dflash_compile.compile.build import BuildOptions
from dflash_compile.compile.coreai import check
from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.backends.coreai import backend as coreai
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import BuildError, BundleError, UsageError

TOKENS = 40
PROMPTS = [[5], [7, 8, 9, 200, 17], list(range(10, 60))]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def bundles(request: pytest.FixtureRequest, apple_bundle: Callable[..., Path]) -> SimpleNamespace:
    return SimpleNamespace(**{name: apple_bundle(request.param, name, "fp32") for name in ("coreai", "onnxruntime")})


def test_whole_answers_equal_those_of_the_cpu_bundle(bundles: SimpleNamespace) -> None:
    with load(bundles.coreai) as session, load(bundles.onnxruntime) as reference:
        for prompt in PROMPTS:
            wanted = list(reference.tokens(prompt, max_new_tokens=TOKENS, draft=False))
            assert list(session.tokens(prompt, max_new_tokens=TOKENS, draft=False)) == wanted
            for block in (4, 3, 2):
                assert list(session.tokens(prompt, max_new_tokens=TOKENS, block=block)) == wanted
                assert session.statistics.cycles


def test_it_drafts_what_the_cpu_bundle_drafts(bundles: SimpleNamespace) -> None:
    accepted = []
    for path in (bundles.coreai, bundles.onnxruntime):
        with load(path) as session:
            list(session.tokens(PROMPTS[2], max_new_tokens=TOKENS, block=4))
            accepted.append((session.statistics.cycles, session.statistics.accepted))
    assert accepted[0] == accepted[1]


def test_an_answer_may_fill_the_context(bundles: SimpleNamespace) -> None:
    """The last calls are narrower than any static width, and their padding still has a place."""
    with load(bundles.coreai) as session, load(bundles.onnxruntime) as reference:
        wanted = list(reference.tokens(PROMPTS[2], draft=False))
        found = list(session.tokens(PROMPTS[2], block=4))
    # A call of one row is the narrowest here, of two rows there: the last token of all fits here alone.
    assert found[:-1] == wanted
    assert len(found) == CONTEXT - len(PROMPTS[2]) + 1


def test_a_closed_session_says_so(bundles: SimpleNamespace) -> None:
    engines = coreai.open_engines(open_bundle(bundles.coreai), EngineOptions())
    engines.close()
    engines.close()
    with pytest.raises(UsageError, match="closed"):
        engines.target.prefill([1], 0)


def test_a_model_that_is_none_is_an_error(bundles: SimpleNamespace, tmp_path: Path) -> None:
    bundle = open_bundle(bundles.coreai)
    record = bundle.manifest.target
    (tmp_path / "empty.aimodel").mkdir()
    with pytest.raises(BundleError, match=r"lacks metadata.json, main.mlirb"):
        coreai._Model(tmp_path / "empty.aimodel", record)


def test_a_runtime_that_aborts_is_a_failed_build(
    bundles: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'fatal error: index out of range' >&2\nkill -ABRT $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(BuildError, match="cannot run") as caught:
        check.check_model(bundles.coreai / "target" / "target.aimodel", (), {})
    assert "index out of range" in str(caught.value)


def test_the_backend_is_found_by_name_and_says_what_is_installed() -> None:
    backend = find_backend("coreai")
    assert "dflash-compile[coreai]" in backend.INSTALL
    assert backend.installed().versions
    with pytest.raises(UsageError, match="provider"):
        backend.open_engines(None, EngineOptions(provider="cuda"))  # type: ignore[arg-type]


def test_a_build_says_when_an_engine_gives_something_else(bundles: SimpleNamespace, tmp_path: Path) -> None:
    """The drafter of other weights behind the same graphs."""
    from dflash_compile.compile.apple.lower import lower
    from dflash_compile.compile.apple.roles import roles_of
    from dflash_compile.compile.pair_sizes import decide
    from dflash_compile.export import open_drafter, open_target

    folder = bundles.coreai.parent
    other = models.write_drafter(tmp_path / "drafter", folder / "target", layers=1, block=4, taps=(0,), seed=9)
    both = decide(open_target(folder / "target"), open_drafter(other), BuildOptions(context=CONTEXT))
    role = roles_of(both, "drafter", "float32")[1]
    with pytest.raises(BuildError, match="inject4: the cache"):
        check.check_model(
            bundles.coreai / "drafter" / "drafter.aimodel", (lower(role.trace(both), role),), both.sources
        )
