"""Folders as people have them: leftovers of older saves, links of the hub's cache, what macOS adds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import write_gguf
from models import write_drafter, write_target
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dflash_compile.export import open_drafter, open_target

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
NAME = "model.norm.weight"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("targets") / "sharded", "qwen3", shard_size="100KB")


@pytest.fixture
def saved_twice(sharded: Path, tmp_path: Path) -> Path:
    """Shards with their index and, saved after them, one whole file of other weights."""
    folder = Path(shutil.copytree(sharded, tmp_path / "twice"))
    weights = {key: value for file in folder.glob("model-*.safetensors") for key, value in load_file(file).items()}
    save_file(weights | {NAME: weights[NAME] + 1}, folder / WHOLE, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("shards", [True, False])
def test_a_whole_file_wins_over_an_index_as_in_transformers(saved_twice: Path, shards: bool) -> None:
    for file in [] if shards else saved_twice.glob("model-*.safetensors"):
        file.unlink()
    target = open_target(saved_twice)
    theirs = AutoModelForCausalLM.from_pretrained(saved_twice).state_dict()
    assert torch.equal(target.read(NAME), theirs[NAME])
    assert WHOLE in target.files
    assert INDEX not in target.files


def with_metadata(folder: Path) -> Path:
    """As macOS writes to disks of other systems."""
    for file in [file for file in folder.iterdir() if file.is_file()]:
        (folder / f"._{file.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    return folder


def test_files_that_macos_leaves_beside_others_are_not_read(tmp_path: Path, sharded: Path) -> None:
    target = with_metadata(Path(shutil.copytree(sharded, tmp_path / "target")))
    drafter = write_drafter(tmp_path / "drafter", target)
    (drafter / WHOLE).rename(drafter / "draft.safetensors")
    (tmp_path / "gguf").mkdir()
    write_gguf(tmp_path / "gguf" / "tiny.gguf", target)
    opened: list[Any] = [
        open_target(target),
        open_drafter(with_metadata(drafter)),
        open_target(with_metadata(tmp_path / "gguf")),
    ]
    assert not [name for checkpoint in opened for name in checkpoint.files if name.startswith(".")]


def linked(path: Path, cache: Path) -> Path:
    """`path`, a file or a folder of files, as a snapshot in the hub's cache: links to files named by their hash."""
    snapshot = cache / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, file in enumerate([path] if path.is_file() else sorted(path.iterdir())):
        shutil.copy(file, cache / "blobs" / f"{number:064x}")
        (snapshot / file.name).symlink_to(f"../../blobs/{number:064x}")
    return snapshot / path.name if path.is_file() else snapshot


def test_snapshots_of_the_hub_open_as_what_they_link_to(tmp_path: Path, sharded: Path) -> None:
    drafter = write_drafter(tmp_path / "drafter", sharded)
    file, draft = write_gguf(tmp_path / "tiny.gguf", sharded), tmp_path / "links"
    assert open_target(linked(sharded, draft / "a")).files == open_target(sharded).files
    assert open_drafter(linked(drafter, draft / "b")).files == open_drafter(drafter).files
    opened = open_target(linked(file, draft / "c"))
    assert (opened.spec.name, opened.files) == ("tiny", open_target(file).files)
