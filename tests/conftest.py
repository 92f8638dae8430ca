"""Settings every test shares: no network. Being here also lets tests import `models`, the tiny checkpoints, by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["DFLASH_COMPILE_CACHE"] = (
    "off"  # nothing of the user's is read or written; tests of the cache have one of their own
)

# Started by `nohup` or in a script's background, tests inherit ignored signals and would pass them on to the programs
# they interrupt. A handler does not outlive exec, so those start with the system's default again.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", lambda *_: None)):
    _number = getattr(signal, _name, None)
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


@pytest.fixture(scope="session")
def apple_bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`apple_bundle("llama", "coreml", "fp16")`, with "ane-io" behind it or not → a tiny bundle, which no test may
    change.

    "deep-llama" is a pair of more layers, and a number behind "ane-io" the most bytes of a package, which it is cut
    into then. Every process of one test run has the same.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "apple"

    def bundle(*kind: str) -> Path:
        from apple import bundle_once  # loads torch

        return bundle_once(root, *kind)

    return bundle


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`apple.Library` in place of coremltools, with compiled models in a folder of this test."""
    from apple import Library

    from dflash_compile.runtime.backends.coreml import backend as coreml

    library = Library()
    monkeypatch.setattr(coreml, "_import_library", lambda: library)
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "compiled"))
    return library
