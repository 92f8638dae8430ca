"""The memory of an export, at a shape of two small layers."""

from __future__ import annotations

import json
import sys

import export_memory
import pytest


@pytest.mark.parametrize(("bound", "code"), [(1 << 20, 0), (1, 1)])
def test_an_export_is_compared_with_its_bound(bound, code, monkeypatch, capsys):
    small = {"num_hidden_layers": 2, "hidden_size": 1024, "vocab_size": 512}
    monkeypatch.setattr(export_memory, "SHAPE", export_memory.SHAPE | small)
    monkeypatch.setattr(export_memory, "TAPS", (0, 1))
    monkeypatch.setattr(export_memory, "EXPORT_BOUND_MB", bound)
    monkeypatch.setattr(sys, "argv", ["export_memory.py", "--json"])
    assert export_memory.main() == code
    figures = json.loads(capsys.readouterr().out)
    assert figures["peak_rss_mb"] > 50
    assert figures["seconds"] > 0
