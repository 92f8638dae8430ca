"""Importing this first lets tests in this folder import `fakes` and `tiny` by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if (HERE := str(Path(__file__).parent)) not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture
def tiny_bundle(tmp_path):
    """A bundle of a few kilobytes with real ONNX Runtime engines, freshly written."""
    from tiny import write_bundle

    return write_bundle(tmp_path / "bundle")
