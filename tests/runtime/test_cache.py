"""The machine's cache: where it is, what `clean` takes away, and hashes remembered in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dflash_compile.runtime import cache, load
from dflash_compile.runtime.bundle import known, stamps
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.cache import cache_folder, cache_note, cache_size, clean, prepare
from dflash_compile.runtime.errors import BundleError

FILES = [
    "target/target.onnx",
    "drafter/inject.onnx",
    "drafter/draft.onnx",
    "tokenizer/tokenizer.json",
    "tokenizer/chat_template.jinja",
]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DFLASH_COMPILE_CACHE": "off"}, None),
        ({"DFLASH_COMPILE_CACHE": " OFF "}, None),
        ({"DFLASH_COMPILE_CACHE": ""}, None),
        ({"DFLASH_COMPILE_CACHE": "/somewhere/else", "XDG_CACHE_HOME": "/xdg"}, Path("/somewhere/else")),
        ({"DFLASH_COMPILE_CACHE": "~/mine"}, Path("/people/somebody/mine")),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/dflash-compile")),
        ({"XDG_CACHE_HOME": "relative"}, Path("/people/somebody/.cache/dflash-compile")),
        ({}, Path("/people/somebody/.cache/dflash-compile")),
    ],
)
def test_where_it_is_on_linux(monkeypatch, environment, expected):
    for name in ("DFLASH_COMPILE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/people/somebody", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cache.sys, "platform", "linux")
    assert cache_folder() == expected


@pytest.mark.parametrize(
    ("platform", "expected"), [("darwin", "Library/Caches/dflash-compile"), ("win32", "AppData/Local/dflash-compile")]
)
def test_where_it_is_elsewhere(monkeypatch, platform, expected):
    for name in ("DFLASH_COMPILE_CACHE", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/people/somebody")
    monkeypatch.setattr(cache.sys, "platform", platform)
    assert cache_folder() == Path("/people/somebody") / expected


def test_a_user_without_a_home_has_none(monkeypatch):
    def nowhere():
        raise RuntimeError("no home")

    for name in ("DFLASH_COMPILE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.Path, "home", nowhere)
    assert cache_folder() is None


@pytest.mark.parametrize(
    "asked", ["~nobody-of-this-name/cache", pytest.param("relative", id="relative, in a folder that is gone")]
)
def test_a_folder_that_cannot_be_named_is_noted_and_stops_nobody(tiny_bundle, monkeypatch, tmp_path, asked):
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", asked)
    bundle = tiny_bundle.absolute()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cache_folder() is None
    with load(bundle) as session:
        assert len(list(session.tokens([1, 2], max_new_tokens=5))) == 5
        (note,) = session.notes
    assert note == cache_note()
    assert f"DFLASH_COMPILE_CACHE={asked}" in note


@pytest.mark.parametrize("asked", ["off", "", "/somewhere"])
def test_a_cache_as_it_was_asked_for_is_no_note(monkeypatch, asked):
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", asked)
    assert cache_note() is None


def test_clean_empties_a_cache_and_nothing_else(tmp_path):
    ours, other = tmp_path / "cache", tmp_path / "work"
    prepare(ours)
    for folder in (ours, other):
        (folder / "engines" / "one").mkdir(parents=True)
        (folder / "engines" / "one" / "file").write_bytes(b"x" * 1000)
        (folder / "thesis.txt").write_text("years of work")
    assert cache_size(ours) > 1000
    assert clean(ours) == 1000
    assert clean(other) == 0, "it was never made to be a cache"
    assert (ours / "thesis.txt").exists()
    assert (other / "engines" / "one" / "file").exists()
    assert clean(ours) == clean(tmp_path / "nothing") == cache_size(tmp_path / "nothing") == 0


def test_it_is_its_users_alone(tmp_path):
    prepare(tmp_path / "cache")
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


@pytest.fixture
def hashed(monkeypatch):
    """Paths hashed since, by name; files count as settled the moment they are written."""
    names: list[str] = []
    real = known.sha256
    monkeypatch.setattr(known, "sha256", lambda path: (names.append(path.name), real(path))[1])
    monkeypatch.setattr(stamps, "_SETTLED_NS", -(10**15))
    return names


def test_a_file_is_hashed_once(tiny_bundle, tmp_path, hashed):
    for _ in range(2):
        open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
        assert len(hashed) == len(FILES)
    moved = tiny_bundle.rename(tmp_path / "moved")
    open_bundle(moved, verify="changed", cache=tmp_path / "cache")
    assert len(hashed) == 2 * len(FILES)


def test_without_a_cache_every_file_is_hashed_every_time(tiny_bundle, hashed):
    for count in (1, 2):
        open_bundle(tiny_bundle, verify="changed")
        assert len(hashed) == count * len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_byte_changed_behind_a_restored_time_is_found(tiny_bundle, tmp_path, hashed, name):
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    file = tiny_bundle / name
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(before.st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    with pytest.raises(BundleError, match=name):
        open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")


def test_a_file_replaced_by_an_equal_one_is_hashed_again(tiny_bundle, tmp_path, hashed):
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    file = tiny_bundle / FILES[0]
    shutil.copy2(file, tmp_path / "copy")
    (tmp_path / "copy").replace(file)
    hashed.clear()
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    assert hashed == [file.name]


def test_a_file_written_just_now_is_not_remembered(tiny_bundle, tmp_path, hashed, monkeypatch):
    monkeypatch.setattr(stamps, "_SETTLED_NS", 10**15)
    for count in (1, 2):
        open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
        assert len(hashed) == count * len(FILES)


@pytest.mark.parametrize("content", [b"", b"{", b'{"target/target.onnx": 3}', b"[]", b"\xff\xfe"])
def test_a_damaged_memory_is_no_memory(tiny_bundle, tmp_path, hashed, content):
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    (record,) = (tmp_path / "cache" / "checked").iterdir()
    record.write_bytes(content)
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    assert len(hashed) == 2 * len(FILES)


def test_a_cache_that_cannot_be_written_stops_nobody(tiny_bundle, tmp_path, hashed, monkeypatch):
    (tmp_path / "cache").write_text("a file in its place")
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "cache"))
    with load(tiny_bundle) as session:
        assert len(list(session.tokens([1, 2], max_new_tokens=5))) == 5


def test_full_means_every_byte_whatever_is_remembered(tiny_bundle, tmp_path, hashed, monkeypatch):
    open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    monkeypatch.setattr("dflash_compile.runtime.bundle.files.sha256", lambda path: "another")
    assert open_bundle(tiny_bundle, verify="changed", cache=tmp_path / "cache")
    with pytest.raises(BundleError, match="not the file"):
        open_bundle(tiny_bundle, verify="full", cache=tmp_path / "cache")
