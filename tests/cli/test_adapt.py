"""`adapt` on a tiny pair: an engine's own answers are learned from, and what does not belong together is refused before
that.
"""

from __future__ import annotations

import json

import models
import pytest
import torch
from safetensors.torch import load_file

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import open_drafter
from dflash_compile.train import recipe

TAPS = (0, 2)
SHORT = ["--response-tokens", "200", "--response-limit", "16", "--held-out", "4", "--evaluate-every", "1", "-q"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """target/, drafter/ with a reduced vocabulary, and their int4 bundle/."""
    folder = tmp_path_factory.mktemp("pair")
    target = models.write_target(folder / "target", max_position_embeddings=512)
    models.write_speculators(folder / "drafter", target, range(4, 200), own_head=False, taps=TAPS, block=4)
    build(str(target), str(folder / "drafter"), folder / "bundle", BuildOptions(precision="int4", context=512))
    return folder


def test_it_learns_from_the_engine_and_keeps_what_the_drafter_is(cli, folder, tmp_path):
    paths = [str(folder / name) for name in ("bundle", "target", "drafter")]
    out = tmp_path / "adapted"
    result = cli("adapt", *paths, "-o", str(out), *SHORT, "--steps", "2", "--json").document
    assert result["steps"] == 2
    assert result["tau_before"] >= 1
    assert len(result["by_position"]) == len(result["by_position_before"]) == 3
    header = json.loads((tmp_path / "adapted.work" / "features" / "store.json").read_text())
    manifest = json.loads((folder / "bundle" / "manifest.json").read_text())
    assert f"int4 {manifest['files']['target/target.onnx.data'][:16]}" in header["target"], (
        "features of an engine are of that engine"
    )
    assert "those of the compiled target int4" in (out / "README.md").read_text()
    before, after = open_drafter(folder / "drafter"), open_drafter(out)
    assert after.vocabulary == before.vocabulary
    assert (after.spec.taps, after.spec.block, after.spec.mask_id) == (
        before.spec.taps,
        before.spec.block,
        before.spec.mask_id,
    )
    assert not torch.equal(
        load_file(out / "model.safetensors")["fc.weight"].float(),
        load_file(folder / "drafter" / "model.safetensors")["fc.weight"].float(),
    )
    again = cli("adapt", *paths, "-o", str(out), *SHORT, "--steps", "2", "--force", "--json").document
    assert again["steps"] == 0
    assert (again["tau_before"], again["tau"]) == (result["tau_before"], result["tau"])


@pytest.mark.parametrize("command", ["adapt", "train"])
def test_threads_are_those_of_training_and_of_the_engine(command, cli, folder, tmp_path, monkeypatch):
    """And torch has its own again behind it."""
    seen, before, real = [], torch.get_num_threads(), recipe.train

    def watched(*arguments, **options):
        engine = options.get("engine") or arguments[-1]
        seen.append((torch.get_num_threads(), engine._session.get_session_options().intra_op_num_threads))
        return real(*arguments, **options)

    monkeypatch.setattr(recipe, "train", watched)
    bundle, target, drafter = (str(folder / name) for name in ("bundle", "target", "drafter"))
    asked = {
        "adapt": [bundle, target, drafter],
        "train": [target, "--from", drafter, "--engine", bundle, "--text-tokens", "0"],
    }[command]
    chosen = before + 1
    assert cli(command, *asked, "-o", str(tmp_path / "out"), *SHORT, "--steps", "1", "--threads", str(chosen)).code == 0
    assert seen == [(chosen, chosen)]
    assert torch.get_num_threads() == before


def test_what_does_not_belong_together_is_refused(cli, folder, tmp_path):
    other = models.write_target(tmp_path / "target", max_position_embeddings=512, seed=3)
    wrong_taps = models.write_drafter(tmp_path / "drafter", folder / "target", taps=(0, 1), block=4)
    bundle, target, drafter = (str(folder / name) for name in ("bundle", "target", "drafter"))
    assert "only a drafter" in cli("adapt", "nowhere", target, drafter, "-o", str(folder), "--force").err, (
        "the output is looked at first"
    )
    cases = [
        ((bundle, str(other), drafter), "hashes"),
        ((bundle, target, str(wrong_taps)), "layers"),
        ((target, target, drafter), "bundle"),
    ]
    for paths, says in cases:
        result = cli("adapt", *paths, "-o", str(tmp_path / "out"), *SHORT)
        assert result.code in (2, 3)
        assert says in result.err
        assert not (tmp_path / "out").exists()
