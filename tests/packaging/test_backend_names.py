"""A back-end and its options are named in its own folders and nowhere else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tree import FOLDERS, ROOT, imports, modules

from dflash_compile.compile.backend_folders import backend_module, backend_names

BACKENDS = backend_names()
OPTIONS = {option for name in BACKENDS for option in backend_module(name, "options", "options").Options.options()}
NAMES_ALLOWED = {
    "cli/failure.py": "which extra of the package brings a library that is missing",
    "compile/graphs/smoke_test.py": "the library that tries ONNX graphs, whichever back-end they are for",
    "compile/options.py": "the default of --backend",
    "runtime/embeds.py": "advice: whose bundles take embeddings",
    "train/compiled_target.py": "the library whose kernels training data are made with",
}
OPTIONS_ALLOWED = {
    "cli/bench/charts.py": "widths of bars",
    "cli/bench/context.py": "rows of a verify, of whatever bundle",
    "cli/bench/measure.py": "what a bundle's manifest says",
    "cli/bench/tables.py": "widths of columns",
    "cli/commands/inspect.py": "what a bundle's manifest says",
    "compile/manifest_records.py": "two that every manifest has, whatever its back-end",
}


def _owners(file: Path) -> set[str]:
    """The back-ends whose folder `file` lies in; those that share a folder are told apart by nothing in it."""
    shared = file.parts[0] in ("compile", "runtime") and "apple" in file.parts[:-1]
    return {*BACKENDS} if shared else {*BACKENDS} & {*file.parts[:-1]}


def _words(file: Path) -> set[str]:
    """Every text that is no docstring, and every name of an attribute, an argument or a keyword."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    remarks = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in remarks:
                found.add(text)
            case ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.arg(arg=name):
                found.add(name)
    return found


def _named(file: Path) -> set[str]:
    """Back-ends that `file` imports, or has anywhere in a text."""
    parts = {part for name in imports(file) for part in name.split(".")}
    return {name for name in BACKENDS if name in parts or any(name in text for text in _words(file))}


def _options(file: Path) -> set[str]:
    return OPTIONS & {word.removeprefix("--").replace("-", "_") for word in _words(file)}


@pytest.mark.parametrize(
    ("find", "allowed", "folders"),
    [
        (_named, NAMES_ALLOWED, FOLDERS),
        # Graphs, the runtime and training have words of their own that are spelt like an option.
        (_options, OPTIONS_ALLOWED, ("cli", "compile")),
    ],
    ids=["names", "options"],
)
def test_no_file_outside_its_folders_knows_a_back_end(find, allowed, folders):
    searched = [file for file in modules() if not _owners(file) and file.parts[0] in folders]
    if find is _options:
        searched = [file for file in searched if file.parts[:2] != ("compile", "graphs")]
    found = {file.as_posix(): words for file in searched if (words := find(file))}
    assert found.keys() <= allowed.keys(), {file: words for file, words in found.items() if file not in allowed}
    assert allowed.keys() <= found.keys(), "no longer true: take it off the list"


@pytest.mark.parametrize("name", BACKENDS)
def test_no_back_end_imports_another(name):
    for file in modules():
        if _owners(file) == {name}:
            crossing = [
                module
                for module in imports(file)
                if module.startswith("dflash_compile.") and {*module.split(".")[:-1]} & ({*BACKENDS} - {name})
            ]
            assert crossing == [], file


def test_a_file_that_names_one_is_found(tmp_path, monkeypatch):
    """So that an empty result above means something."""
    file = tmp_path / "compile" / "new.py"
    file.parent.mkdir()
    file.write_text('"""Not coreai."""\nif backend == "tensorrt":\n    build(options.arch, **{"cache_policy": None})\n')
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "imports", lambda _: ("dflash_compile.compile.coreml.names",))
    relative = file.relative_to(tmp_path)
    assert _named(relative) == {"tensorrt", "coreml"}
    assert _options(relative) == {"arch", "cache_policy"}
