"""Tiles: the same bytes as in one piece, in order, on every thread, errors included."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dflash_compile.compile.graphs import tiles as tiling
from dflash_compile.compile.graphs.encoding import Floats
from dflash_compile.compile.graphs.tiles import TileEncoder, tiles
from dflash_compile.compile.onnxruntime.quantize import IntGroups
from dflash_compile.compile.tensorrt.encodings import Int4Groups, NvFp4, Rows8

HALF = ir.DataType.FLOAT16
ENCODINGS = [
    Floats(),
    Floats(half=True),
    IntGroups(8, 64),
    IntGroups(4, 32),
    IntGroups(4, 128),
    Rows8(HALF),
    Int4Groups(64, HALF),
]


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("encoding", [*ENCODINGS, Rows8(HALF, floating=True), NvFp4()], ids=str)
def test_bytes_are_those_of_one_piece(encoding, threads, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_NUMBERS", 1000)
    weight = torch.randn(131, 256, generator=torch.Generator().manual_seed(1), dtype=torch.bfloat16)
    with TileEncoder() as encoder:
        found = list(encoder.encode(encoding, iter([weight[:50], weight[50:]])))
    assert sum(tile.rows for tile in found) == 131
    assert len(found) > 40
    for number, whole in enumerate(encoding.encode(weight)):
        assert np.concatenate([tile.parts[number] for tile in found]).tobytes() == whole.tobytes()
    assert torch.get_num_threads() == threads, "torch's threads are those of before"


def test_a_row_wider_than_a_tile_is_a_tile():
    assert [len(tile) for tile in tiles(torch.zeros(3, tiling.TILE_NUMBERS + 1))] == [1, 1, 1]
    assert [len(tile) for tile in tiles(torch.zeros(3, 4, 5))] == [3]


def test_an_error_of_one_tile_ends_the_whole(threads, monkeypatch):
    class Broken(Floats):
        def encode(self, rows):
            if bool((rows == 7).any()):
                raise ValueError("seven")
            return super().encode(rows)

    monkeypatch.setattr(tiling, "TILE_NUMBERS", 4)
    with TileEncoder() as encoder, pytest.raises(ValueError, match="seven"):
        list(encoder.encode(Broken(), [torch.arange(64.0).reshape(16, 4)]))


def test_what_is_not_finite_is_told_of_its_tile(threads, monkeypatch):
    monkeypatch.setattr(tiling, "TILE_NUMBERS", 4)
    rows = torch.ones(4, 4)
    rows[1, 0], rows[2, 3] = float("nan"), 1e6
    with TileEncoder() as encoder:
        found = list(encoder.encode(Floats(half=True), [rows]))
    assert [tile.finite for tile in found] == [True, False, True, True]
    assert [tile.finite_parts for tile in found] == [True, False, False, True]
