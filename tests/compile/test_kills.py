"""A process that is killed while it writes a bundle: one whole bundle is in its place, and nothing stays for ever."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_compile.cli.machine import examine
from dflash_compile.export.checkpoints import swap as swapping
from dflash_compile.export.checkpoints.drafter_folder import refuse_existing
from dflash_compile.export.checkpoints.staging import check_output, staged
from dflash_compile.runtime import unfinished
from dflash_compile.runtime.bundle.files import MANIFEST
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import DFlashError, UsageError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
CALLS = ["mkdir", "_flush", "_exchanged", "rename", "rmtree"]
"""what a replacement calls, in this order"""


def write(folder: Path, text: str) -> None:
    (folder / "target").mkdir()
    for number in range(5):
        (folder / "target" / str(number)).write_text(text)
    (folder / MANIFEST).write_text(text)


def contents(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == 6
    return {path.read_text() for path in files}


def replace(place: Path, text: str) -> None:
    with staged(place, 0) as staging:
        write(staging, text)


def in_a_child(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; returns its pid at once."""
    if pid := os.fork():
        return pid
    try:
        work()
    finally:
        os._exit(0)


def kill_at(monkeypatch: pytest.MonkeyPatch, name: str, number: int, *, after: bool) -> None:
    """Let this process die before or after its `number`-th call of `name`."""
    owners = {"mkdir": Path, "rename": Path, "rmtree": shutil, "_exchanged": swapping}
    from dflash_compile.export.checkpoints import staging

    owner = owners.get(name, staging)
    real, count = getattr(owner, name), [0]

    def call(*arguments: object, **named: object) -> object:
        count[0] += 1
        if count[0] == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if count[0] == number and after:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", CALLS)
def test_a_kill_at_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int, after: bool, exchange: bool
) -> None:
    place = tmp_path / "bundle"
    replace(place, "old")

    def work() -> None:
        if not exchange:
            monkeypatch.setattr(swapping, "_exchanged", lambda *_: False)
        kill_at(monkeypatch, name, number, after=after)
        replace(place, "new")

    os.waitpid(in_a_child(work), 0)
    assert place.is_dir() or not exchange
    with pytest.raises(DFlashError, match="cannot be read"):  # it is found, and is no real manifest
        read_manifest(place)
    assert contents(place) in ({"old"}, {"new"})
    left = [path.name for path in tmp_path.iterdir() if path != place]
    assert [Path(path).name for path in examine(tmp_path).abandoned] == sorted(left)
    replace(place, "newer")
    assert contents(place) == {"newer"}
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_place_that_a_kill_left_empty_is_not_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "bundle"
    replace(place, "old")
    (place / "config.json").write_text("{}")

    def work() -> None:
        monkeypatch.setattr(swapping, "_exchanged", lambda *_: False)
        kill_at(monkeypatch, "rename", 1, after=True)
        replace(place, "new")

    for check in (lambda: check_output(place, force=False), lambda: refuse_existing(place, replace=False)):
        os.waitpid(in_a_child(work), 0)
        assert not place.exists()
        with pytest.raises(UsageError):
            check()
        assert place.is_dir()


def test_a_living_writer_keeps_its_folder(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    with staged(place, 0) as first:
        write(first, "first")
        assert unfinished.abandoned(tmp_path) == []
        replace(place, "second")
        assert contents(place) == {"second"}
    assert contents(place) == {"first"}


def test_nobody_takes_the_old_bundle_from_a_writer_between_its_renames(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    replace(place, "old")
    with unfinished.beside(place) as staging:
        place.rename(unfinished.aside(staging))
        unfinished.recover(place)
        assert not place.exists()
        assert unfinished.abandoned(tmp_path) == []
        staging.rename(place)


def test_names_like_ours_of_another_place_stay(tmp_path: Path) -> None:
    others = [".other.01234567.building", ".bundle.0123.building", "bundle.01234567.building"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / ".bundle.01234567.building").symlink_to(tmp_path / others[0], target_is_directory=True)
    replace(tmp_path / "bundle", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["bundle", ".bundle.01234567.building", *others])


@pytest.mark.slow
def test_two_hundred_kills_at_random(tmp_path: Path) -> None:
    place, chance = tmp_path / "bundle", random.Random(0)
    replace(place, "0")

    def work() -> None:
        for number in range(1, 1000):
            replace(place, str(number))

    for _ in range(200):
        pid = in_a_child(work)
        time.sleep(0.02 + 0.03 * chance.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert len(contents(place)) == 1
        assert len(list(tmp_path.iterdir())) <= 2
