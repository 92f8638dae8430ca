"""`inspect` on a drafter with a reduced vocabulary and on the bundle built from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from models import IM_END, write_speculators, write_target

from dflash_compile.runtime.bundle.read import read_manifest

IDS = (IM_END, *range(100, 140))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target") / "target")


def test_it_says_how_many_tokens_can_be_proposed(cli, target: Path, tmp_path: Path) -> None:
    drafter = write_speculators(tmp_path / "drafter", target, IDS, own_head=False)
    shown = cli("inspect", str(drafter))
    assert (shown.code, "speculators" in shown.out) == (0, True)
    assert cli("inspect", str(drafter), "--json").document["spec"]["draft_vocab"] == len(IDS)
    bundle = tmp_path / "bundle"
    assert cli("build", str(target), str(drafter), "-o", str(bundle), "--max-context", "64").code == 0
    assert f"{len(IDS)} of 384 tokens" in cli("inspect", str(bundle)).out
    vocabulary = read_manifest(bundle).pairing.draft_vocabulary
    assert vocabulary is not None
    assert (bundle / vocabulary.file).stat().st_size == 4 * len(IDS)
    assert cli("run", str(bundle), "--prompt", "the quick", "--max-new-tokens", "8").code == 0
