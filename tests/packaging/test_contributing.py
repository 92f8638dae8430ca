"""The examples of CONTRIBUTING.md, taken out of it and added to a copy of the tree, do what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from models import write_drafter, write_target
from tree import FOLDERS, NAMESPACE, ROOT

pytestmark = pytest.mark.slow  # half a minute, most of it torch and transformers in a process of their own

Reports = tuple[Path, dict[str, dict[str, Any]]]
COMMANDS = """
import io, json, sys
from contextlib import redirect_stdout
from dflash_compile.cli.main import main
found = {}
for name, words in json.load(sys.stdin).items():
    with redirect_stdout(io.StringIO()) as said:
        main(words)
    found[name] = json.loads(said.getvalue())
print(json.dumps(found))
"""
"""reads command lines by name, and writes the documents that they print"""
BLOCK = re.compile(r"`((?:\w+/)+\w+\.py)`:\n\n```(python|diff)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and every example of the page in it."""
    root = tmp_path_factory.mktemp("tree")
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("*.safetensors", "__pycache__", "bundles")
        shutil.copytree(ROOT / folder, root / NAMESPACE / folder, ignore=ignored)
    examples = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert len(examples) == 9
    for name, kind, text in examples:
        file = root / NAMESPACE / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text if kind == "python" else _patched(file.read_text(encoding="utf-8"), text))
    return root


@pytest.fixture(scope="module")
def reports(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What commands of the copy report, and the folder that they wrote bundles to; all in one process, since torch is
    slow to import.
    """
    folder = tmp_path_factory.mktemp("pairs")
    target, other = write_target(folder / "llama"), write_target(folder / "mistral", "mistral")
    drafter = write_drafter(folder / "drafter", target)
    fits_other = write_drafter(folder / "for-mistral", other)
    acme = write_drafter(folder / "acme", target, block=5, architectures=["AcmeDraftModel"])
    build = ["--max-context", "64", "-o"]
    commands: dict[str, list[str | Path]] = {
        "family": ["build", other, fits_other, *build, folder / "family"],
        "layout": ["inspect", acme],
        "precision": ["build", target, drafter, *build, folder / "precision", "--precision", "mixed"],
        "back-end": ["build", target, drafter, *build, folder / "outline", "--backend", "outline", "--indent", "2"],
        "outline": ["inspect", folder / "outline"],
    }
    words = {name: [*map(str, command), "--json"] for name, command in commands.items()}
    run = subprocess.run(
        [sys.executable, "-c", COMMANDS],
        input=json.dumps(words),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"},
        cwd=tree,
    )
    assert run.returncode == 0, run.stderr
    return folder, json.loads(run.stdout)


def _patched(text: str, diff: str) -> str:
    lines = diff.splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +"))
    assert text.count(before) == 1, f"not there once: {before}"
    return text.replace(before, after)


def _manifest(bundle: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def test_a_family(reports: Reports) -> None:
    folder, found = reports
    assert "bundle" in found["family"], found["family"]
    assert _manifest(folder / "family")["target"]["family"] == "mistral"


def test_a_drafter_layout(reports: Reports) -> None:
    spec = reports[1]["layout"]["spec"]
    assert (spec["dialect"], spec["block"]) == ("acme", 6)
    assert "anchor" in spec["evidence"]["block"]


def test_a_precision(reports: Reports) -> None:
    folder, found = reports
    assert "bundle" in found["precision"], found["precision"]
    assert _manifest(folder / "precision")["target"]["precision"] == "mixed"


def test_a_back_end(reports: Reports) -> None:
    folder, found = reports
    assert found["back-end"]["notes"] == ["outlines cannot be run"]
    assert found["outline"]["manifest"]["requires"]["backend"] == "outline"
    assert (folder / "outline/target/target.json").read_text().startswith('{\n  "role": "target"')
