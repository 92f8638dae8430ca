"""Rules that hold for every file in the repository."""

from __future__ import annotations

import re

from tree import ROOT, tracked

LINES = 400
HOSTS = re.compile(r"pypi\.org|pythonhosted|registry\.npmjs|download\.pytorch|deb\.debian")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users|mnt|opt)/\w")
THIS = "tests/packaging/test_tracked_files.py"


def _text(file):
    data = (ROOT / file).read_bytes()
    return None if b"\0" in data[:4096] else data.decode(errors="ignore")


def test_python_files_are_short() -> None:
    counts = {
        str(file): len((ROOT / file).read_text(encoding="utf-8").splitlines())
        for file in tracked()
        if file.suffix == ".py"
    }
    assert {file: lines for file, lines in counts.items() if lines > LINES} == {}


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found = []
    for file in tracked():
        if file.as_posix() == THIS or (text := _text(file)) is None:
            continue
        found += [f"{file}: {match.group()}" for pattern in (HOSTS, MACHINE_PATH) for match in pattern.finditer(text)]
    assert found == []
