"""A bundle appears whole or not at all, whatever happens while it is written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from dflash_compile.export.checkpoints import swap as swapping
from dflash_compile.export.checkpoints.staging import check_output, staged
from dflash_compile.runtime.bundle.files import MANIFEST
from dflash_compile.runtime.errors import BuildError, UsageError


def write(folder: Path, text: str = "new") -> None:
    (folder / "target").mkdir()
    (folder / "target" / "weights").write_text(text)
    (folder / MANIFEST).write_text(text)


def stage(output: Path, *steps: Callable[[Path], object]) -> None:
    with staged(output, 0) as staging:
        for step in steps:
            step(staging)


@pytest.fixture(params=[False, True], ids=["new", "replacing"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    if request.param:
        place.mkdir()
        write(place, "old")
    return place


def interrupt() -> None:
    raise KeyboardInterrupt


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("accident", "error"), [(interrupt, KeyboardInterrupt), (terminate, KeyboardInterrupt), (fail, ZeroDivisionError)]
)
def test_an_accident_leaves_everything_as_it_was(
    output: Path, accident: Callable[[], None], error: type[BaseException]
) -> None:
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(error):
        stage(output, write, lambda _: accident())
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    assert [path.name for path in output.parent.iterdir()] == (["bundle"] if before else [])
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize("after", [1, 2])
def test_an_interrupt_between_the_renames_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Right after the old bundle was moved aside, and right after the new one took its place."""
    output = tmp_path / "bundle"
    output.mkdir()
    write(output, "old")
    rename, done = Path.rename, list[Path]()

    def interrupted(path: Path, to: Path) -> Path:
        moved = rename(path, to)
        done.append(path)
        if len(done) == after:
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(swapping, "_exchanged", lambda *_: False)
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage(output, write)
    assert (output / MANIFEST).read_text() == {1: "old", 2: "new"}[after]
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.skipif(sys.platform != "linux", reason="the exchange of this system")
def test_an_interrupt_after_the_exchange_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    write(output, "old")
    exchange = swapping._exchanged

    def interrupted(one: Path, other: Path) -> bool:
        assert exchange(one, other)
        raise KeyboardInterrupt

    monkeypatch.setattr(swapping, "_exchanged", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage(output, write)
    assert (output / MANIFEST).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_an_interrupt_while_the_old_one_is_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "bundle"
    output.mkdir()
    write(output, "old")
    remove, interrupts = shutil.rmtree, [KeyboardInterrupt()]

    def interrupted(path: Path, ignore_errors: bool) -> None:
        if interrupts:
            raise interrupts.pop()
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    stage(output, write)
    assert (output / MANIFEST).read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_two_builds_of_one_process_do_not_meet(tmp_path: Path) -> None:
    with staged(tmp_path / "bundle", 0) as first, staged(tmp_path / "bundle", 0) as second:
        write(first)
        write(second)
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_success_replaces_the_whole(output: Path) -> None:
    if output.exists():
        (output / "stale").write_text("old")
    with staged(output, 0) as staging:
        write(staging)
    assert sorted(path.name for path in output.iterdir()) == [MANIFEST, "target"]
    assert (output / "target" / "weights").read_text() == "new"
    assert [path.name for path in output.parent.iterdir()] == ["bundle"]


def test_too_little_space_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with (
        pytest.raises(BuildError, match="too little space"),
        staged(tmp_path / "bundle", shutil.disk_usage(tmp_path).free + 1),
    ):
        pytest.fail("it began to write")
    assert not list(tmp_path.iterdir())


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, where this machine lets us mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or os.geteuid() != 0
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_disk_that_runs_full_leaves_nothing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 40, 0, 1 << 40))
    with pytest.raises(BuildError, match="could not be written") as caught:
        stage(small_disk / "bundle", lambda staging: (staging / "weights").write_bytes(bytes(2 << 20)))
    assert "space" in str(caught.value)
    assert not list(small_disk.iterdir())


def test_a_file_larger_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits are a Unix matter")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises(BuildError, match="could not be written"):
            stage(tmp_path / "bundle", lambda staging: (staging / "weights").write_bytes(bytes(1 << 20)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())


def test_an_output_is_never_replaced_by_surprise(tmp_path: Path) -> None:
    check_output(tmp_path / "new", force=False)
    (tmp_path / "empty").mkdir()
    check_output(tmp_path / "empty", force=False)
    (tmp_path / "bundle").mkdir()
    write(tmp_path / "bundle")
    check_output(tmp_path / "bundle", force=True)
    with pytest.raises(UsageError, match="there is a bundle"):
        check_output(tmp_path / "bundle", force=False)


def test_what_is_no_bundle_is_not_replaced_even_by_force(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("you")
    (tmp_path / "file").write_text("")
    for name in ("letters", "file"):
        with pytest.raises(UsageError, match="no bundle"):
            check_output(tmp_path / name, force=True)


@pytest.mark.parametrize("there", [True, False], ids=["to a bundle", "to nothing"])
def test_a_link_stays_a_link(tmp_path: Path, there: bool) -> None:
    place, link = tmp_path / "bundle", tmp_path / "link"
    if there:
        place.mkdir()
        write(place, "old")
    link.symlink_to("bundle")
    check_output(link, force=True)
    stage(link, write)
    assert link.is_symlink()
    assert (place / MANIFEST).read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "link"]


def test_a_folder_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for output in (tmp_path / "file" / "bundle", tmp_path / "file" / "deep" / "bundle"):
        with pytest.raises(UsageError, match="no folder"):
            check_output(output, force=True)
    with pytest.raises(UsageError, match="no path"):
        check_output(tmp_path / "\udcff", force=False)
