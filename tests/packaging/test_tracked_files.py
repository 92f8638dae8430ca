"""Rules that hold for every file in the repository."""

from __future__ import annotations

import re

import pytest
from tree import ROOT, tracked

LINES = 400
HOSTS = re.compile(r"pypi\.org|pythonhosted|registry\.npmjs|download\.pytorch|deb\.debian")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users|mnt|opt)/\w")
THIS = "tests/packaging/test_tracked_files.py"


def _text(file):
    data = (ROOT / file).read_bytes()
    return None if b"\0" in data[:4096] else data.decode(errors="ignore")


@pytest.mark.parametrize("file", [file for file in tracked() if file.suffix == ".py"], ids=str)
def test_python_files_are_short(file):
    assert len((ROOT / file).read_text(encoding="utf-8").splitlines()) <= LINES


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found = []
    for file in tracked():
        if file.as_posix() == THIS or (text := _text(file)) is None:
            continue
        found += [f"{file}: {match.group()}" for pattern in (HOSTS, MACHINE_PATH) for match in pattern.finditer(text)]
    assert found == []
