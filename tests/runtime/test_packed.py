"""Packed engines in the cache: the same tokens, found again, remade when damaged, done without where they cannot be
kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import msgspec
import onnx
import pytest
from tiny import EXACT, write_bundle

from dflash_compile.runtime import load
from dflash_compile.runtime.backends.onnxruntime import packed as _ort_packed
from dflash_compile.runtime.backends.onnxruntime.packed import PackedEngines
from dflash_compile.runtime.backends.onnxruntime.packed_entry import Entry, forget_unused
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import BundleError

PROMPT = list(b"the quick brown fox")
ENGINES = 3


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The folder of the cache, which is switched on for this test."""
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def expected(tiny_bundle, monkeypatch):
    """The answer without a cache."""
    with monkeypatch.context() as patched:
        patched.setenv("DFLASH_COMPILE_CACHE", "off")
        return answer(tiny_bundle)[0]


@pytest.fixture
def made(monkeypatch):
    """Roles whose packed form was made since."""
    roles: list[str] = []
    real = PackedEngines._save

    def save(self, record, place):
        roles.append(record.role)
        return real(self, record, place)

    monkeypatch.setattr(PackedEngines, "_save", save)
    return roles


def answer(bundle):
    with load(bundle) as session:
        return [*session.tokens(PROMPT), *session.tokens(PROMPT, draft=False)], session.notes


def entries(cache):
    return sorted(path for path in (cache / "engines").iterdir())


def test_the_first_load_makes_them_and_the_second_finds_them(tiny_bundle, cache, expected, made):
    assert answer(tiny_bundle) == (expected, ())
    assert sorted(made) == ["draft", "inject", "target"]
    assert len(entries(cache)) == ENGINES
    assert answer(tiny_bundle) == (expected, ())
    assert len(made) == ENGINES


def test_they_are_what_runs(tiny_bundle, cache, expected, monkeypatch):
    answer(tiny_bundle)
    monkeypatch.setattr(
        "dflash_compile.runtime.backends.onnxruntime.backend.open_engine",
        lambda *rest: pytest.fail("the bundle's own engine was loaded"),
    )
    assert answer(tiny_bundle) == (expected, ())


@pytest.mark.parametrize("value", ["off", ""])
def test_switched_off_nothing_is_written(tiny_bundle, cache, made, monkeypatch, value):
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", value)
    answer(tiny_bundle)
    assert made == []
    assert not cache.exists()


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x55
    with file.open("r+b") as stream:
        stream.write(content)


def _restamp(file):
    """As a program that copies times along with the bytes it changes."""
    before = file.stat()
    _flip(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


DAMAGES = {
    "a byte": _flip,
    "a byte behind its back": _restamp,
    "cut short": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "gone": lambda file: file.unlink(),
    "a folder in its place": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", ["engine.onnx", "engine.onnx.data", "entry.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_changes_no_token(tiny_bundle, cache, expected, made, damage, name):
    answer(tiny_bundle)
    made.clear()
    for entry in entries(cache):
        DAMAGES[damage](entry / name)
    tokens, _ = answer(tiny_bundle)
    assert tokens == expected
    assert answer(tiny_bundle) == (expected, ()), "the second load at the latest has whole ones again"
    assert len(made) == ENGINES


def test_a_surplus_file_is_damage_too(tiny_bundle, cache, expected, made):
    answer(tiny_bundle)
    for entry in entries(cache):
        (entry / "weights.bin").write_bytes(b"who put this here")
    assert answer(tiny_bundle) == (expected, ())
    assert len(made) == 2 * ENGINES
    assert not list(cache.rglob("weights.bin"))


def test_a_restored_copy_is_hashed_and_used(tiny_bundle, cache, expected, made):
    answer(tiny_bundle)
    shutil.copytree(cache, cache.with_name("backup"))
    shutil.rmtree(cache)
    cache.with_name("backup").rename(cache)
    assert answer(tiny_bundle) == (expected, ())
    assert len(made) == ENGINES


def test_another_bundle_library_or_processor_has_entries_of_its_own(tiny_bundle, tmp_path, cache, made, monkeypatch):
    import onnxruntime

    answer(tiny_bundle)
    other = write_bundle(tmp_path / "other")
    answer(other)
    assert len(entries(cache)) == ENGINES, "the same engines in another place"
    with (other / "target" / "target.onnx").open("ab") as stream:
        stream.write(b"\x6a\x00")  # an empty metadata field: another file, the same model
    from tiny import write_manifest

    write_manifest(other, open_bundle(tiny_bundle).manifest)
    answer(other)
    assert len(entries(cache)) == ENGINES + 1
    for count, change in enumerate(
        [
            lambda: monkeypatch.setattr(onnxruntime, "__version__", "99.0"),
            lambda: monkeypatch.setattr(onnxruntime, "get_build_info", lambda: "built otherwise"),
            lambda: monkeypatch.setattr(_ort_packed, "processor", lambda: ("another",)),
            lambda: monkeypatch.setattr(_ort_packed, "_FORM", -1),
        ],
        start=1,
    ):
        change()
        answer(tiny_bundle)
        assert len(entries(cache)) == ENGINES + 1 + count * ENGINES


def test_processes_that_race_agree(tiny_bundle, cache, expected):
    script = f"""
import sys
from dflash_compile.runtime import load
sys.stdin.read(1)
with load({str(tiny_bundle)!r}) as session:
    print([*session.tokens({PROMPT!r}), *session.tokens({PROMPT!r}, draft=False)], session.notes)
"""
    runs = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for run in runs:
        run.stdin.write("x")
        run.stdin.flush()
    assert [run.communicate()[0].strip() for run in runs] == [f"{expected} ()"] * len(runs)
    assert len(entries(cache)) == ENGINES, "no staging folder is left"
    assert all(Entry(path).whole() for path in entries(cache))


@pytest.mark.parametrize("place", ["cache", "cache/engines"])
def test_where_nothing_can_be_written_the_engines_of_the_bundle_run(tiny_bundle, cache, expected, place):
    (cache.parent / place).parent.mkdir(exist_ok=True)
    (cache.parent / place).write_text("a file in its place")
    tokens, notes = answer(tiny_bundle)
    assert tokens == expected
    assert len(notes) == 1
    assert "not kept" in notes[0]


def test_a_disk_that_runs_full_leaves_nothing_behind(tiny_bundle, cache, expected):
    script = f"""
import resource
from dflash_compile.runtime import load
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with load({str(tiny_bundle)!r}) as session:
    print([*session.tokens({PROMPT!r}), *session.tokens({PROMPT!r}, draft=False)], len(session.notes))
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.PIPE, text=True)
    tokens, notes = run.stdout.strip().rsplit(" ", 1)
    assert tokens == str(expected)
    assert int(notes) >= 1
    (left,) = entries(cache)  # inject is small enough to fit
    assert Entry(left).whole()


def test_a_disk_with_little_space_is_left_alone(tiny_bundle, cache, expected, made, monkeypatch):
    monkeypatch.setattr(_ort_packed.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**4))
    tokens, notes = answer(tiny_bundle)
    assert tokens == expected
    assert "a tenth" in notes[0]
    assert made == []


def test_a_form_that_answers_otherwise_is_refused_once_and_for_all(tiny_bundle, cache, expected, made, monkeypatch):
    answers = iter(range(100))
    monkeypatch.setattr(_ort_packed, "trial", lambda *rest: [bytes([next(answers)])])
    assert answer(tiny_bundle) == (expected, ())
    assert len(made) == ENGINES
    assert answer(tiny_bundle) == (expected, ())
    assert len(made) == ENGINES
    assert not list(cache.rglob("*.data"))


def test_an_engine_that_the_library_cannot_pack_runs_as_it_is(tiny_bundle, cache, expected, monkeypatch):
    def fail(self, record, place):
        raise RuntimeError("unheard of")

    monkeypatch.setattr(PackedEngines, "_save", fail)
    tokens, notes = answer(tiny_bundle)
    assert tokens == expected
    assert "unheard of" in notes[0]
    assert entries(cache) == []


def test_what_nobody_uses_is_forgotten(tiny_bundle, cache, expected):
    answer(tiny_bundle)
    first, *rest = entries(cache)
    month = time.time() - 31 * 24 * 3600
    os.utime(first / "entry.json", (month, month))
    young, old = cache / "engines" / ".young", cache / "engines" / ".old"
    for folder in (young, old):
        folder.mkdir()
    os.utime(old, (month, month))
    forget_unused(cache / "engines")
    assert entries(cache) == sorted([young, *rest])
    os.utime(rest[0] / "entry.json", (month, month))
    answer(tiny_bundle)
    assert (rest[0] / "entry.json").stat().st_mtime > month + 1000, "using it makes it young again"


def _impostor(root):
    """A bundle whose target says other letters, with the manifest of the honest one."""
    write_bundle(root)
    manifest, engine = (root / "manifest.json").read_bytes(), root / "target" / "target.onnx"
    model = onnx.load(engine)
    (shift,) = (tensor for tensor in model.graph.initializer if tensor.name == "shift")
    values = onnx.numpy_helper.to_array(shift).copy()
    values[ord("E")] = 50
    shift.CopyFrom(onnx.numpy_helper.from_array(values, "shift"))
    engine.write_bytes(model.SerializeToString())
    (root / "manifest.json").write_bytes(manifest)
    return root


def test_a_bundle_that_claims_the_hashes_of_another_leaves_nothing_for_it(tiny_bundle, tmp_path, cache, expected):
    impostor = _impostor(tmp_path / "impostor")
    with load(impostor, verify="size") as session:
        assert set(session.tokens(PROMPT)) == {ord("E")}
    for verify in ("full", "changed"):
        with load(tiny_bundle, verify=verify) as session:
            assert [*session.tokens(PROMPT), *session.tokens(PROMPT, draft=False)] == expected


def test_nor_does_it_run_what_the_other_left(tiny_bundle, tmp_path, cache):
    answer(tiny_bundle)
    with load(_impostor(tmp_path / "impostor"), verify="size") as session:
        assert set(session.tokens(PROMPT)) == {ord("E")}


@pytest.mark.parametrize("moment", ["before", "while"])
def test_an_engine_that_changes_between_hashing_and_packing_leaves_nothing(
    tiny_bundle, tmp_path, cache, monkeypatch, moment
):
    other = (_impostor(tmp_path / "impostor") / "target" / "target.onnx").read_bytes()
    real, engine = PackedEngines._save, tiny_bundle / "target" / "target.onnx"
    bundle = open_bundle(tiny_bundle)
    honest = engine.read_bytes()

    def save(self, record, place):
        engine.write_bytes(other)
        try:
            return real(self, record, place)
        finally:
            engine.write_bytes(honest)

    if moment == "before":
        engine.write_bytes(other)
    else:
        monkeypatch.setattr(PackedEngines, "_save", save)
    packed = PackedEngines(__import__("onnxruntime"), bundle, cache, None)
    with pytest.raises(BundleError, match="changed while"):
        packed.session(bundle.manifest.target.graphs[0])
    assert entries(cache) == []


def test_a_manifest_that_calls_the_engine_otherwise_refuses_no_entry_of_the_honest_one(tiny_bundle, tmp_path, cache):
    """Its trial may fail, which is remembered."""
    honest = open_bundle(tiny_bundle).manifest
    record = honest.target.graphs[0]
    other = msgspec.structs.replace(record, widest=3)
    packed = PackedEngines(__import__("onnxruntime"), open_bundle(tiny_bundle), cache, None)
    assert packed._key(record) != packed._key(other)


def test_an_engine_for_another_device_is_never_packed(tiny_bundle, cache, made):
    from dflash_compile.runtime.backends.onnxruntime import backend

    packed = PackedEngines(__import__("onnxruntime"), open_bundle(tiny_bundle), None, None)
    assert packed.session(open_bundle(tiny_bundle).manifest.target.graphs[0]) is None
    assert backend.open_engines(open_bundle(tiny_bundle), backend.EngineOptions()).target.min_verify_rows == EXACT
    assert made == []


def test_the_record_says_what_was_hashed(tiny_bundle, cache):
    answer(tiny_bundle)
    for path in entries(cache):
        record = msgspec.json.decode((path / "entry.json").read_bytes())
        assert set(record["files"]) == {file.name for file in path.iterdir()} - {"entry.json"}
