"""No circle among the direct children of any package, folders and files alike, imports for type checkers included."""

from __future__ import annotations

import graphlib
from collections import defaultdict

import pytest
from tree import FOLDERS, NAMESPACE, dotted, imports, modules


def _module(name: str, known: set[str]) -> str | None:
    """The module that importing `name` loads: `a.b.c` may be a name within `a.b`."""
    parts = name.split(".")
    starts = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((start for start in starts if start in known), None)


def _edges() -> dict[str, set[str]]:
    """The modules of the packages → those of them that each imports."""
    files = {dotted(file): file for file in modules()}
    known = set(files)
    return {
        name: {found for imported in imports(file) if (found := _module(imported, known)) and found != name}
        for name, file in files.items()
    }


def circle(package: str, edges: dict[str, set[str]]) -> list[str]:
    """Children of `package` that import each other in a ring, the first one again at the end; empty where none do.

    What a child imports, at any depth below it, counts as the child's.
    """
    depth = package.count(".") + 2

    def child(module: str) -> str | None:
        return ".".join(module.split(".")[:depth]) if module.startswith(f"{package}.") else None

    graph: dict[str, set[str]] = defaultdict(set)
    for module, imported in edges.items():
        if (source := child(module)) is not None:
            graph[source] |= {other for name in imported if (other := child(name)) not in (None, source) and other}
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_package_has_a_circle() -> None:
    edges = _edges()
    packages = {name.rpartition(".")[0] for name in edges} | {NAMESPACE}
    assert {f"{NAMESPACE}.{folder}" for folder in FOLDERS if folder != "artifacts"} <= packages
    assert {package: ring for package in sorted(packages) if (ring := circle(package, edges))} == {}


@pytest.mark.parametrize(
    ("package", "edges"),
    [
        ("a", {"a.b": {"a.c"}, "a.c": {"a.b"}}),
        ("a", {"a.b.x": {"a.c.y"}, "a.c.z": {"a.d"}, "a.d": {"a.b"}}),
        ("a.b", {"a.b.x": {"a.b.y"}, "a.b.y": {"a.b.z.u"}, "a.b.z.v": {"a.b.x"}}),
    ],
    ids=["files", "folders, by way of a file", "in a package of a package"],
)
def test_a_circle_is_found(package: str, edges: dict[str, set[str]]) -> None:
    assert circle(package, edges)
    assert not circle("a.z", edges)
