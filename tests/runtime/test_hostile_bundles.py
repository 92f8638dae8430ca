"""Bundles from a stranger: manifests that contradict themselves, files that are none, engines that fail at work."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny import edit_manifest, write_manifest

from dflash_compile.runtime import load
from dflash_compile.runtime.bundle import read
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import BundleError, DFlashError, IncompatibleError, UsageError

PROMPT = list(b"abc")


def set_in(*keys, to):
    def change(document):
        *path, last = keys
        for key in path:
            document = document[key]
        document[last] = to

    return change


TARGET_GRAPH, DRAFT_GRAPH = ("target", "graphs", 0), ("drafter", "graphs", 1)


@pytest.mark.parametrize("depth", [2_000, 200_000])
@pytest.mark.parametrize(
    "place", ['{{"config": {}}}', '{{"format": "dflash-bundle", "version": 1, "target": {}}}', "{}"]
)
def test_a_manifest_nested_without_end(tiny_bundle, place, depth):
    for opening, closing in ("[]", ('{"a":', "}")):
        (tiny_bundle / "manifest.json").write_text(place.format(opening * depth + "1" + closing * depth))
        with pytest.raises(BundleError, match="manifest cannot be read"):
            open_bundle(tiny_bundle)


@pytest.mark.parametrize(
    "change",
    [
        set_in(*TARGET_GRAPH, "widest", to=0),
        set_in(*TARGET_GRAPH, "widest", to=1),
        set_in(*TARGET_GRAPH, "widest", to=-5),
        set_in(*DRAFT_GRAPH, "widest", to=1),
        set_in(*TARGET_GRAPH, "rows", to=0),
        set_in(*TARGET_GRAPH, "inputs", 0, "shape", to=[1, -1]),
        set_in(*TARGET_GRAPH, "outputs", 1, "shape", to=[1, "rows", 1 << 40]),
        set_in("context", to=1 << 40),
        set_in("target", "hidden", to=0),
        set_in("drafter", "layers", to=-1),
        set_in("sizes", "target/target.onnx", to=-1),
    ],
)
def test_sizes_that_cannot_be(tiny_bundle, change):
    edit_manifest(tiny_bundle, change)
    with pytest.raises(BundleError, match="contradicts itself"):
        open_bundle(tiny_bundle, verify="size")


@pytest.mark.parametrize("graph", [TARGET_GRAPH, ("drafter", "graphs", 0), DRAFT_GRAPH])
@pytest.mark.parametrize("kept", [0, 1])
def test_caches_that_the_manifest_leaves_out(tiny_bundle, graph, kept):
    def leave_out(document):
        for key in graph:
            document = document[key]
        document["caches"] = document["caches"][:kept]

    edit_manifest(tiny_bundle, leave_out)
    with pytest.raises(BundleError), load(tiny_bundle) as session:
        list(session.tokens(PROMPT))


def test_caches_larger_than_the_machine(tiny_bundle, monkeypatch):
    monkeypatch.setattr("dflash_compile.runtime.backends.onnxruntime.graph._memory", lambda: 1000)
    with pytest.raises(IncompatibleError, match="caches of this bundle take"):
        load(tiny_bundle)


def test_memory_that_runs_out_while_loading(tiny_bundle, monkeypatch):
    def none_left(*rest):
        raise MemoryError

    monkeypatch.setattr("dflash_compile.runtime.backends.onnxruntime.graph._aligned_zeros", none_left)
    with pytest.raises(BundleError, match="cannot be loaded") as caught:
        load(tiny_bundle)
    assert "MemoryError" in caught.value.why


def test_an_engine_that_fails_at_work(tiny_bundle):
    """It looks up tokens far behind the end of the table, which nobody sees before it runs."""
    file = tiny_bundle / "target" / "target.onnx"
    model = onnx.load(file)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(10**6, np.int32), "far"))
    model.graph.node[0].input[1] = "beyond"
    model.graph.node.insert(0, onnx.helper.make_node("Add", ["tokens", "far"], ["beyond"]))
    file.write_bytes(model.SerializeToString())
    write_manifest(tiny_bundle, read.read_manifest(tiny_bundle))
    with load(tiny_bundle) as session, pytest.raises(BundleError, match="engine of the bundle failed"):
        list(session.tokens(PROMPT))


def test_names_longer_than_the_system_takes(tiny_bundle):
    with pytest.raises(DFlashError):
        open_bundle("x" * 300)
    with pytest.raises(DFlashError):
        open_bundle("x/" * 3000)
    edit_manifest(tiny_bundle, set_in("files", "t" * 300, to="0" * 64))
    with pytest.raises(BundleError):
        open_bundle(tiny_bundle)


@pytest.mark.parametrize("number", [5, 13, 24])
@pytest.mark.parametrize("call", ["is_file", "is_dir", "stat"])
def test_systems_that_fail_to_look(tiny_bundle, monkeypatch, call, number):
    real, count = getattr(Path, call), [0]

    def fails(path, **named):
        count[0] += 1
        if count[0] == 3:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, **named)

    monkeypatch.setattr(Path, call, fails)
    with suppress(DFlashError):  # anything else fails the test
        open_bundle(tiny_bundle)


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer/chat_template.jinja", "target/target.onnx"])
def test_a_folder_or_a_pipe_in_place_of_a_file(tiny_bundle, name):
    (tiny_bundle / name).unlink()
    (tiny_bundle / name).mkdir()
    with pytest.raises(DFlashError):
        open_bundle(tiny_bundle)
    (tiny_bundle / name).rmdir()
    os.mkfifo(tiny_bundle / name)
    with pytest.raises(DFlashError):
        open_bundle(tiny_bundle)


def test_a_manifest_without_end(tiny_bundle, monkeypatch):
    monkeypatch.setattr(read, "MANIFEST_BYTES", 100)
    with pytest.raises(BundleError, match="manifest cannot be read") as caught:
        open_bundle(tiny_bundle)
    assert "more than" in caught.value.why


@pytest.mark.parametrize(
    "path", [None, 3, b"x", [], "a\0b", object()], ids=["none", "number", "bytes", "list", "nul", "object"]
)
def test_what_is_no_path(path):
    with pytest.raises(UsageError, match="no path"):
        load(path)


@pytest.mark.parametrize(
    "wrong",
    [{"provider": []}, {"provider": None}, {"threads": True}, {"device_loop": True}, {"threads": 2.0}],
    ids=repr,
)
def test_options_of_a_wrong_type(tiny_bundle, wrong):
    with pytest.raises(UsageError):
        load(tiny_bundle, **wrong)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": True}, {"block": True}], ids=repr)
def test_truth_is_no_number(tiny_bundle, wrong):
    with load(tiny_bundle) as session, pytest.raises(UsageError):
        list(session.tokens(PROMPT, **wrong))


def test_a_cache_below_the_home_of_nobody_is_none(tiny_bundle, monkeypatch):
    monkeypatch.setenv("DFLASH_COMPILE_CACHE", "~nobodyatall/x")
    with load(tiny_bundle) as session:
        assert list(session.tokens(PROMPT, max_new_tokens=2))


def test_a_library_that_is_missing_is_no_damage(tiny_bundle, monkeypatch):
    def missing(*rest):
        raise ModuleNotFoundError("No module named 'something'", name="something")

    monkeypatch.setattr("dflash_compile.runtime.backends.onnxruntime.backend.open_engines", missing)
    with pytest.raises(IncompatibleError, match="cannot be loaded"):
        load(tiny_bundle)
