"""Bundles that are damaged, foreign or hostile are refused, with the right error and before any engine loads."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tiny import edit_manifest

from dflash_compile.runtime import load, requirements
from dflash_compile.runtime.bundle import files, read
from dflash_compile.runtime.bundle.files import confine
from dflash_compile.runtime.bundle.manifest import VERSION
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.bundle.schema import bundle_schema
from dflash_compile.runtime.errors import BundleError, ExitCode, IncompatibleError, UsageError
from dflash_compile.runtime.requirements import check_requirements

FILES = [
    "target/target.onnx",
    "drafter/inject.onnx",
    "drafter/draft.onnx",
    "tokenizer/tokenizer.json",
    "tokenizer/chat_template.jinja",
]


def test_a_whole_bundle_opens(tiny_bundle):
    bundle = open_bundle(tiny_bundle)
    assert set(bundle.manifest.files) == set(FILES)
    assert open_bundle(str(tiny_bundle), verify="size").manifest == bundle.manifest
    assert bundle.file(FILES[0]).is_file()


@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte(tiny_bundle, name):
    file = tiny_bundle / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(BundleError, match=name) as caught:
        open_bundle(tiny_bundle)
    assert caught.value.exit_code == ExitCode.CHECK_FAILED
    assert open_bundle(tiny_bundle, verify="size")


@pytest.mark.parametrize("verify", ["full", "size"])
@pytest.mark.parametrize("name", FILES)
def test_truncated_or_missing_file(tiny_bundle, name, verify):
    file = tiny_bundle / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(BundleError, match="bytes long"):
        open_bundle(tiny_bundle, verify=verify)
    file.unlink()
    with pytest.raises(BundleError, match=f"lacks {name}"):
        open_bundle(tiny_bundle, verify=verify)


def test_surplus_file(tiny_bundle):
    (tiny_bundle / "target" / ".DS_Store").write_bytes(b"litter is not an error")
    open_bundle(tiny_bundle)
    (tiny_bundle / "target" / "target.onnx.data").write_bytes(b"what is this")
    with pytest.raises(BundleError, match="does not list") as caught:
        open_bundle(tiny_bundle)
    assert "target/target.onnx.data" in caught.value.where


@pytest.mark.parametrize("verify", ["full", "changed", "size"])
def test_a_folder_that_cannot_be_listed_hides_nothing(tiny_bundle, monkeypatch, verify):
    """As one of mode 0311 does, whose files can be opened by name; the administrator would list it all the same."""
    (tiny_bundle / "target" / "weights").write_bytes(b"unhashed")
    real = os.scandir

    def scandir(path):
        if Path(path).name == "target":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(BundleError, match="cannot be listed") as caught:
        open_bundle(tiny_bundle, verify=verify)
    assert caught.value.where == str(tiny_bundle / "target")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the administrator may list any folder")
def test_a_folder_without_leave_to_list_it(tiny_bundle):
    (tiny_bundle / "target").chmod(0o311)
    with pytest.raises(BundleError, match="cannot be listed"):
        open_bundle(tiny_bundle)


def test_folders_without_end(tiny_bundle):
    (tiny_bundle / "target").joinpath(*"d" * 200).mkdir(parents=True)
    with pytest.raises(BundleError, match="deep"):
        open_bundle(tiny_bundle)


def test_newer_version_comes_before_everything_else(tiny_bundle):
    def change(document):
        document["version"] = VERSION + 1
        document["a_key_of_the_future"] = {}
        del document["context"]

    edit_manifest(tiny_bundle, change)
    (tiny_bundle / FILES[0]).unlink()
    with pytest.raises(IncompatibleError, match=f"version {VERSION + 1}") as caught:
        open_bundle(tiny_bundle)
    assert caught.value.exit_code == ExitCode.INCOMPATIBLE
    assert "pip install --upgrade" in caught.value.fix


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.__setitem__("surprise", 1), "surprise"),
        (lambda d: d["target"].__setitem__("surprise", 1), r"\$\.target"),
        (
            lambda d: d["target"]["graphs"][0]["inputs"][0].__setitem__("surprise", 1),
            r"\$\.target\.graphs\[0\]\.inputs\[0\]",
        ),
        (lambda d: d.pop("pairing"), "pairing"),
        (lambda d: d.__setitem__("context", "96"), r"\$\.context"),
        (lambda d: d.__setitem__("format", "zip"), "zip"),
        (lambda d: d.__setitem__("version", 0), "never existed"),
        (lambda d: d["pairing"].__setitem__("mask_id", 258), "mask_id"),
        (lambda d: d["pairing"].__setitem__("block", 1), "block"),
        (lambda d: d["requires"].__setitem__("exact_width", 0), "exact_width"),
        (lambda d: d["text"].__setitem__("eos_ids", [-1]), "eos_ids"),
        (lambda d: d["drafter"]["graphs"].append(d["drafter"]["graphs"][0]), "twice"),
        (lambda d: d["files"].pop("target/target.onnx"), "not listed"),
        (lambda d: d["target"]["graphs"][0]["caches"][0].__setitem__(0, "k_cache_9"), "k_cache_9"),
        (lambda d: d["drafter"]["graphs"][1]["caches"][0].__setitem__(1, "k_cache_0"), "no input and output"),
        (lambda d: d["target"].__setitem__("vocab", 10**12), "vocabulary of 1000000000000"),
    ],
)
def test_bad_manifest(tiny_bundle, change, says):
    edit_manifest(tiny_bundle, change)
    with pytest.raises(BundleError) as caught:
        open_bundle(tiny_bundle)
    assert re.search(says, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"format": "dflash-bundle", "version": "one"}'])
def test_unreadable_manifest(tiny_bundle, content):
    (tiny_bundle / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError):
        open_bundle(tiny_bundle)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"embeds": [1, "rows", 16]}, "embeds alone"),
        ({"given": [1, "rows"]}, "given alone"),
        ({"embeds": [1, "rows", 17], "given": [1, "rows"]}, "for a hidden size of 16"),
    ],
)
def test_ports_for_given_rows_that_cannot_be(tiny_bundle, shapes, says):
    ports = [{"name": name, "dtype": "float32", "shape": shape} for name, shape in shapes.items()]
    edit_manifest(tiny_bundle, lambda document: document["target"]["graphs"][0]["inputs"].extend(ports))
    with pytest.raises(BundleError, match=says):
        open_bundle(tiny_bundle)


def test_not_a_bundle(tmp_path):
    with pytest.raises(UsageError, match="no such bundle"):
        open_bundle(tmp_path / "nothing")
    with pytest.raises(UsageError, match="not a bundle"):
        open_bundle(tmp_path)
    with pytest.raises(UsageError, match="verify"):
        open_bundle(tmp_path, verify="no")


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside",
        "target/../../outside",
        "target/../target/target.onnx",
        "C:\\outside",
        "C:/outside",
        "a\\..\\b",
        "",
        ".",
        "a\0b",
    ],
)
def test_paths_stay_inside(tiny_bundle, path):
    with pytest.raises(BundleError, match="outside"):
        confine(tiny_bundle, path)


@pytest.mark.parametrize("place", ["tokenizer", "chat_template", "graph"])
def test_a_manifest_that_points_outside(tiny_bundle, place):
    (tiny_bundle.parent / "secret").write_text("secret")

    def change(document):
        document["files"]["../secret"] = "0" * 64
        if place == "graph":
            document["target"]["graphs"][0]["file"] = "../secret"
        else:
            document["text"][place] = "../secret"

    edit_manifest(tiny_bundle, change)
    with pytest.raises(BundleError, match="outside"):
        open_bundle(tiny_bundle)


def test_links_stay_inside(tiny_bundle, tmp_path):
    outside = tmp_path / "outside.jinja"
    file = tiny_bundle / "tokenizer" / "chat_template.jinja"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(outside)
    with pytest.raises(BundleError, match="link"):
        open_bundle(tiny_bundle)
    file.unlink()
    file.write_bytes(outside.read_bytes())
    (tiny_bundle / "more").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(BundleError, match="does not list"):
        open_bundle(tiny_bundle)


def test_a_snapshot_in_the_hubs_cache_opens(tiny_bundle, tmp_path):
    cache = tmp_path / "models--a--b"
    snapshot = cache / "snapshots" / "0123"
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in tiny_bundle.rglob("*") if path.is_file())):
        blob, link = cache / "blobs" / f"{number:064x}", snapshot / file.relative_to(tiny_bundle)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(blob)
    assert open_bundle(snapshot)
    outside = tmp_path / "models--other" / "blobs" / "0"
    outside.parent.mkdir(parents=True)
    (snapshot / FILES[0]).resolve().rename(outside)
    (snapshot / FILES[0]).unlink()
    (snapshot / FILES[0]).symlink_to(outside)
    with pytest.raises(BundleError, match="link"):
        open_bundle(snapshot)


def test_links_in_a_circle(tiny_bundle):
    file = tiny_bundle / "tokenizer" / "chat_template.jinja"
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(BundleError, match=r"found|lacks"):
        open_bundle(tiny_bundle)


def test_a_bundle_behind_a_link_opens(tiny_bundle, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tiny_bundle, target_is_directory=True)
    assert open_bundle(link)


def test_library_too_old_is_said_before_hashing(tiny_bundle, monkeypatch):
    edit_manifest(tiny_bundle, lambda document: document["requires"].update(minimum="999.1", built_with="999.2"))
    monkeypatch.setattr(read, "check_files", lambda *rest: pytest.fail("hashed first"))
    with pytest.raises(IncompatibleError, match=r"built for onnxruntime 999.2; you have onnxruntime") as caught:
        open_bundle(tiny_bundle, check=check_requirements)
    assert "pip install --upgrade" in caught.value.fix


def test_library_missing(tiny_bundle, monkeypatch):
    class Nothing:
        INSTALL = "pip install something"

        @staticmethod
        def installed():
            return requirements.Installed({})

    monkeypatch.setattr(requirements, "find_backend", lambda name: Nothing)
    with pytest.raises(IncompatibleError, match="you have none") as caught:
        open_bundle(tiny_bundle, check=check_requirements)
    assert caught.value.fix == "run: pip install something"
    with pytest.raises(IncompatibleError, match="you have none"):
        load(tiny_bundle)
    assert open_bundle(tiny_bundle).notes == (), "its files are whole, wherever it can run"


@pytest.mark.parametrize(
    "name", ["tensorflow", "os", "../onnxruntime", "onnxruntime.x", "_ort_graph", "", "Onnxruntime"]
)
def test_unknown_backend(tiny_bundle, name):
    edit_manifest(tiny_bundle, lambda document: document["requires"].__setitem__("backend", name))
    with pytest.raises(IncompatibleError, match="back-end"):
        open_bundle(tiny_bundle, check=check_requirements)


@pytest.mark.parametrize(
    ("older", "newer"), [("1.9.0", "1.10"), ("1.31.1", "1.32.0rc1"), ("1.32", "1.32.1+cu13"), ("1.32.0", "2")]
)
def test_versions_compare_by_number(older, newer):
    assert requirements.release(older) < requirements.release(newer)


def test_a_manifest_from_before_thinking_was_recorded(tiny_bundle):
    edit_manifest(tiny_bundle, lambda document: document["pairing"].pop("thinking"))
    assert open_bundle(tiny_bundle).manifest.pairing.thinking is None


def test_checked_in_schema_is_current():
    checked_in = Path(__file__).parents[2] / "artifacts" / "bundle.schema.json"
    assert checked_in.read_text(encoding="utf-8") == bundle_schema(), (
        "run: python -m dflash_compile.runtime.bundle.schema > artifacts/bundle.schema.json"
    )


def test_schema_accepts_a_manifest(tiny_bundle):
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((tiny_bundle / "manifest.json").read_text())
    jsonschema.validate(document, json.loads(bundle_schema()))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "surprise": 1}, json.loads(bundle_schema()))


def test_unreadable_file(tiny_bundle, monkeypatch):
    def deny(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(files, "sha256", deny)
    with pytest.raises(BundleError, match="cannot be read"):
        open_bundle(tiny_bundle)
