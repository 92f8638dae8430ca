"""Benchmarks and commands use what the packages offer: what an object keeps to itself they leave alone."""

from __future__ import annotations

import ast
import re

import pytest
from tree import ROOT, tracked

FILES = [file for file in tracked() if file.suffix == ".py" and file.parts[0] in {"benchmarks", "cli"}]
PRIVATE = re.compile(r"_[a-z]\w*")
OWN = ("self", "cls")
LIBRARIES = {"os._exit"}
"""offered by others under such a name"""


def reached(source: str) -> list[str]:
    """Private attributes of other objects that `source` reads, sets, or asks for by name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in OWN):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr", "delattr", "hasattr"}:
            found += [
                it.value
                for it in node.args[1:2]
                if isinstance(it, ast.Constant) and isinstance(it.value, str) and PRIVATE.match(it.value)
            ]
    return [name for name in found if name not in LIBRARIES]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_private_attribute_of_another_object(file):
    assert reached((ROOT / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("session._engines.target", ["session._engines"]),
        ("self._inner._on_trial", ["self._inner._on_trial"]),
        ("setattr(session, '_text', 1)", ["_text"]),
        ("target._logits = 1", ["target._logits"]),
        ("self._mine, cls._ours, os._exit(0), x.__dict__, getattr(x, name)", []),
    ],
)
def test_what_counts_as_private(source, found):
    assert reached(source) == found
