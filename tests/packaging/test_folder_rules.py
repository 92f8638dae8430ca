"""Which folder may import which: the table of the design, checked on every import statement at any depth."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tree import FOLDERS, NAMESPACE, dotted, imports, modules, tracked

MAY_IMPORT = {
    "artifacts": (),
    "cli": ("artifacts", "compile", "export", "runtime", "train"),
    "compile": (
        "export",
        "runtime.bundle",
        "runtime.errors",
        "runtime.foreign",
        "runtime.regular",
        "runtime.unfinished",
    ),
    "export": (
        "runtime.chat",
        "runtime.errors",
        "runtime.foreign",
        "runtime.regular",
        "runtime.tokenizer_bounds",
        "runtime.unfinished",
    ),
    "runtime": (),
    "train": ("export", "runtime.errors"),
}
NEVER = {
    "runtime": ("torch", "transformers", "onnx", "onnx_ir", "onnxscript", "safetensors", "gguf"),
    "artifacts": ("torch", "transformers"),
}


def _under(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _broken(file: Path) -> list[str]:
    """What `file` imports and may not."""
    folder = file.parts[0]
    allowed = [f"{NAMESPACE}.{name}" for name in (folder, *MAY_IMPORT[folder])]
    return [
        f"{dotted(file)} imports {name}"
        for name in imports(file)
        if (_under(name, NAMESPACE) and not any(_under(name, package) for package in allowed))
        or any(_under(name, library) for library in NEVER.get(folder, ()))
    ]


def test_a_folder_reaches_only_what_it_may() -> None:
    assert {file.parts[0] for file in modules()} == set(FOLDERS)
    assert [line for file in modules() for line in _broken(file)] == []


def test_no_folder_is_imported_without_the_namespace() -> None:
    bare = [
        f"{file} imports {name}"
        for file in tracked()
        if file.suffix == ".py"
        for name in imports(file)
        if any(_under(name, package) for package in FOLDERS)
    ]
    assert bare == [], "a bare import makes a second module of the same file"


def test_importing_the_whole_runtime_loads_nothing_of_the_build():
    names = [dotted(file) for file in modules() if file.parts[0] == "runtime"]
    banned = [*NEVER["runtime"], *(f"{NAMESPACE}.{folder}" for folder in FOLDERS if folder != "runtime")]
    code = (
        f"import importlib, sys\nfor n in {names}: importlib.import_module(n)\nprint([m for m in {banned} if m in"
        " sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
