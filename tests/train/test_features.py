"""The feature folder: round trip, torn writes, wrong owner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dflash_compile.runtime.errors import UsageError
from dflash_compile.train.features import FeatureStore, StoreMismatch


def _store(folder: Path, target: str = "t") -> FeatureStore:
    return FeatureStore(folder, 6, (1, 2), target)


def test_round_trip_through_a_second_opening(tmp_path: Path) -> None:
    store = _store(tmp_path)
    rows = [torch.randn(n, 6).to(torch.bfloat16) for n in (3, 5)]
    store.append([1, 2, 3], rows[0], 1, "a")
    store.append([4, 5, 6, 7, 8], rows[1], 2, "b")
    again = _store(tmp_path)
    tokens, features = again.read()
    assert [e.tag for e in again.entries] == ["a", "b"]
    assert tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert torch.equal(features, torch.cat(rows))


def test_a_torn_append_is_forgotten_and_written_over(tmp_path: Path) -> None:
    _store(tmp_path).append([1, 2], torch.ones(2, 6), 1)
    with (tmp_path / "tokens.bin").open("ab") as file:
        file.write(b"\1" * 11)
    with (tmp_path / "index.jsonl").open("a") as file:
        file.write('{"start": 2, "len')
    store = _store(tmp_path)
    store.append([3], torch.zeros(1, 6), 0)
    tokens, features = _store(tmp_path).read()
    assert tokens.tolist() == [1, 2, 3]
    assert features[:, 0].tolist() == [1, 1, 0]


@pytest.mark.parametrize(("width", "taps", "target"), [(7, (1, 2), "t"), (6, (1, 3), "t"), (6, (1, 2), "other")])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, width: int, taps: tuple[int, ...], target: str) -> None:
    _store(tmp_path)
    with pytest.raises(StoreMismatch) as caught:
        FeatureStore(tmp_path, width, taps, target)
    assert "another folder" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "content"),
    [("store.json", "{"), ("index.jsonl", "{}\n"), ("index.jsonl", "no\n"), ("tokens.bin", ""), ("features.bin", "xx")],
)
def test_a_damaged_folder_is_refused_and_left_alone(tmp_path: Path, name: str, content: str) -> None:
    _store(tmp_path).append([1, 2], torch.ones(2, 6), 1)
    (tmp_path / name).write_text(content)
    with pytest.raises(UsageError, match="damaged"):
        _store(tmp_path)
    assert (tmp_path / name).read_text() == content
