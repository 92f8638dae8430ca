"""Checkpoints from a stranger: lengths that lie, sizes without bound, files that are none. Soon, and by our errors."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gguf_files import write_gguf, write_gguf_drafter
from models import write_drafter, write_target

from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.bounds import check_bounds
from dflash_compile.export.gguf_format.header import check_header
from dflash_compile.export.outline import outline_drafter, outline_target
from dflash_compile.runtime.errors import CheckpointError, DFlashError

STRING, ARRAY, UINT32, FLOAT32 = 8, 9, 4, 6


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < 20


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("models") / "target")


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf(*entries: bytes, tensors: int = 0, count: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries) if count is None else count) + b"".join(entries)


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text(b"general.architecture") + struct.pack("<IIQ", ARRAY, kind, count) + content


HEADERS = {
    "an array of 2**60": gguf(array(UINT32, 1 << 60)),
    "an array of 2**31": gguf(array(UINT32, 1 << 31)),
    "an array of 2**20 in a short file": gguf(array(UINT32, 1 << 20)),
    "texts without end": gguf(array(STRING, 1 << 60)),
    "a text of 2**60": gguf(struct.pack("<Q", 1 << 60)),
    "keys without end": gguf(count=1 << 60),
    "tensors without end": gguf(tensors=1 << 60),
    "arrays in arrays": gguf(array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 5000)),
    "an unknown type": gguf(array(77, 1)),
    "axes without end": gguf(tensors=1) + text(b"t") + struct.pack("<I", 1 << 31),
    "many empty texts": gguf(array(STRING, (1 << 23) + 1, b"\0" * 64)),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_gguf_header_that_lies(tmp_path: Path, name: str) -> None:
    file = tmp_path / "bomb.gguf"
    file.write_bytes(HEADERS[name])
    for opens in (open_target, open_drafter, outline_drafter):
        with pytest.raises(DFlashError):
            opens(file)
    with pytest.raises(ValueError, match=r"."):
        check_header(file)


def test_a_whole_gguf_passes_the_walk(tmp_path: Path, target: Path) -> None:
    check_header(write_gguf(tmp_path / "tiny.gguf", target))


@pytest.mark.parametrize("count", [100, 4000])
def test_a_gguf_cut_short(tmp_path: Path, target: Path, count: int) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", target)
    file.write_bytes(file.read_bytes()[:count])
    with pytest.raises(CheckpointError, match="damaged"):
        open_target(file)


def change(folder: Path, values: dict[str, object], drop: tuple[str, ...] = ()) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if key not in drop}))


SIZES: list[dict[str, object]] = [
    {"num_hidden_layers": 10**6},
    {"num_hidden_layers": 2**64},
    {"head_dim": 2**31},
    {"intermediate_size": 2**63},
    {"vocab_size": 2**40},
    {"sliding_window": 2**70},
    {"max_position_embeddings": 2**64},
]


@pytest.mark.parametrize("values", SIZES, ids=str)
def test_sizes_that_no_model_has(tmp_path: Path, values: dict[str, object]) -> None:
    target = write_target(tmp_path / "target")
    drafter = write_drafter(tmp_path / "drafter", target)
    (key,) = values
    for folder, opens in (
        (target, (open_target, outline_target)),
        (drafter, (open_drafter, outline_drafter)),
    ):
        change(folder, values)
        for each in opens:
            with pytest.raises(CheckpointError, match=key):
                each(folder)


@pytest.mark.parametrize("kind", [None, 5, [], {}])
def test_a_configuration_of_no_family(tmp_path: Path, kind: object) -> None:
    target = write_target(tmp_path / "target")
    change(target, {"model_type": kind}, ("model_type",) if kind is None else ())
    for opens in (open_target, outline_target):
        with pytest.raises(CheckpointError):
            opens(target)


def test_a_configuration_nested_without_end() -> None:
    deep: dict[str, object] = {}
    for _ in range(500):
        deep = {"a": [deep]}
    with pytest.raises(CheckpointError, match="deep"):
        check_bounds(deep, "config.json")


def pipe(file: Path) -> None:
    os.mkfifo(file)


def zeros(file: Path) -> None:
    file.symlink_to("/dev/zero")


def folder(file: Path) -> None:
    file.mkdir()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("instead", [pipe, zeros, folder])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
)
def test_what_is_no_file(tmp_path: Path, name: str, instead: Callable[[Path], None]) -> None:
    target = write_target(tmp_path / "target")
    (target / name).unlink(missing_ok=True)
    instead(target / name)
    with pytest.raises(DFlashError):
        open_target(target)


def test_what_libraries_raise_is_ours(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("something")

    monkeypatch.setattr("dflash_compile.export.targets.transformers_dir.read_config", fail)
    with pytest.raises(CheckpointError, match="cannot be read") as caught:
        open_target(target)
    assert "KeyError" in caught.value.why


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.freq_base", float("inf")),
        ("rope.freq_base", float("nan")),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("block_count", (1 << 31) - 1),
        ("block_count", 1 << 31),
        ("context_length", 1 << 31),
        ("embedding_length", "many"),
        ("attention.head_count", 1.5),
    ],
)
def test_metadata_of_a_gguf_drafter_that_cannot_be(tmp_path: Path, target: Path, key: str, value: object) -> None:
    drafter = write_drafter(tmp_path / "drafter", target)
    file = write_gguf_drafter(tmp_path / "drafter.gguf", drafter)
    open_drafter(file)
    if isinstance(value, str):
        value = [1, 2]
    with pytest.raises(CheckpointError, match=key.rpartition(".")[2]):
        open_drafter(write_gguf_drafter(tmp_path / "drafter.gguf", drafter, extra={key: value}))


@pytest.mark.parametrize(
    "extra", [{"tokenizer.ggml.bos_token_id": "one"}, {"tokenizer.ggml.eos_token_id": 1.5}], ids=str
)
def test_metadata_of_a_gguf_target_of_a_wrong_type(tmp_path: Path, target: Path, extra: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        open_target(write_gguf(tmp_path / "tiny.gguf", target, extra=extra))
