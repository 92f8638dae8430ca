"""A Core AI bundle of which only half can be opened: the other half does not stay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_compile.runtime.backend import EngineOptions
from dflash_compile.runtime.backends.coreai import backend as coreai
from dflash_compile.runtime.errors import BundleError


@pytest.mark.parametrize("fails", [1, 2, 3])
def test_what_was_opened_before_a_fault_is_closed(monkeypatch: pytest.MonkeyPatch, fails: int) -> None:
    opened: list[str] = []
    closed: list[str] = []

    def step() -> None:
        if len(opened) == fails - 1:
            raise BundleError("broken")

    class Model:
        def __init__(self, path: Path, record: Any) -> None:
            step()
            opened.append(path.name)

        def close(self) -> None:
            closed.append("model")

    def target(manifest: Any, functions: Any) -> Any:
        step()

    monkeypatch.setattr(coreai, "_Model", Model)
    monkeypatch.setattr(coreai, "StaticTarget", target)
    models = [SimpleNamespace(graphs=[SimpleNamespace(file=name)]) for name in ("target", "drafter")]
    manifest = SimpleNamespace(target=models[0], drafter=models[1])
    with pytest.raises(BundleError, match="broken"):
        coreai.open_engines(SimpleNamespace(manifest=manifest, file=Path), EngineOptions())  # type: ignore[arg-type]
    assert len(closed) == len(opened) == fails - 1
