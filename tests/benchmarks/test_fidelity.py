"""Distances from the float32 weights: none for a bundle that holds them, and more the fewer bits it keeps."""

from __future__ import annotations

import json

import fidelity
import models
import numpy as np
import pytest

from dflash_compile.compile.build import BuildOptions, build


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return models.write_target(tmp_path_factory.mktemp("fidelity") / "target", "qwen3")


@pytest.fixture(scope="module")
def bundles(target, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundles")
    drafter = models.write_drafter(folder / "drafter", target)
    return [
        build(target, drafter, folder / name, BuildOptions(precision=name, context=96)) for name in ("fp32", "int4")
    ]


def test_fewer_bits_are_further_from_the_weights(target, bundles, tmp_path, capsys):
    prompts = tmp_path / "mine.txt"
    prompts.write_text("a b c d e\nf g h\n", encoding="utf-8")
    words = [str(target), *map(str, bundles), "--suite", str(prompts), "--max-new-tokens", "16", "--json"]
    assert fidelity.main(words) == 0
    own, full, four = json.loads(capsys.readouterr().out)
    assert own["places"] == four["places"] > 16
    assert (own["agreement"], own["divergence"]) == (1.0, 0.0)
    assert full["agreement"] == 1.0, "the same weights, the same choices"
    assert full["divergence"] <= 1e-4
    assert full["divergence"] < four["divergence"]
    assert full["cross_entropy"] == pytest.approx(own["cross_entropy"], abs=1e-3)


def test_divergence_by_hand():
    distance = fidelity.Distance()
    halves, quarter = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    distance.add(halves, quarter, [0])
    row = distance.row()
    assert row["divergence"] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), abs=1e-4)
    assert row["cross_entropy"] == pytest.approx(np.log(4), abs=1e-4)
    assert fidelity.normalised(np.array([[1000.0, 1000.0]])) == pytest.approx(np.log([[0.5, 0.5]]))
