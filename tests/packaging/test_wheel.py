"""What users install: the wheel, made from the source distribution, holds every module and every file that ships."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tree import FOLDERS, NAMESPACE, ROOT, modules, tracked


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """Paths of the source distribution and the wheel built from it, in a copy of the tree: an old build/ would leak
    into them.
    """
    copy = tmp_path_factory.mktemp("tree")
    for file in tracked():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy / file)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", copy / "dist", copy],
        check=True,
        capture_output=True,
    )
    return next((copy / "dist").glob("*.tar.gz")), next((copy / "dist").glob("*.whl"))


def test_wheel_and_tree_hold_the_same_modules(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        built = {name for name in wheel.namelist() if name.endswith(".py")}
    assert built == {f"{NAMESPACE}/{file.as_posix()}" for file in modules()}, (
        "list every subpackage under [tool.setuptools] in pyproject.toml"
    )


def test_wheel_holds_types_markers_and_what_ships(distributions):
    with zipfile.ZipFile(distributions[1]) as wheel:
        built = set(wheel.namelist())
    shipped = {
        file.as_posix()
        for file in tracked()
        if file.parts[0] in FOLDERS and file.suffix != ".py" and file.name != "ruff.toml"
    }
    assert {f"{NAMESPACE}/{name}" for name in shipped} <= built
    assert {f"{NAMESPACE}/{folder}/py.typed" for folder in FOLDERS} <= built
    assert any(name.endswith("licenses/LICENSE") for name in built)


def test_source_distribution_holds_the_same_modules(distributions):
    with tarfile.open(distributions[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {file.as_posix() for file in modules()} <= names
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names


def test_console_script_answers():
    script = shutil.which("dflash-compile", path=str(Path(sys.executable).parent))
    assert script is not None, "install the project: make test does"
    run = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("dflash-compile ")


def test_the_package_of_commands_runs_as_a_module():
    run = subprocess.run(
        [sys.executable, "-m", "dflash_compile.cli", "no-such-command"], capture_output=True, text=True
    )
    assert run.returncode == 2
    assert "no-such-command" in run.stderr
