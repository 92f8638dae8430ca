"""Bundles whose drafter proposes some of the target's tokens only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import BLOCK, DRAFTER, MASK, VOCAB, edit_manifest, reduce_draft, reference, reference_logits, write_manifest

from dflash_compile.runtime import load
from dflash_compile.runtime.backend import EngineOptions, find_backend
from dflash_compile.runtime.bundle.read import open_bundle, read_manifest
from dflash_compile.runtime.bundle.vocabulary import draft_token_ids
from dflash_compile.runtime.errors import BundleError

IDS = [*b"faxbdz", 256]
"""not in order, one of the letters the models like left out"""


@pytest.fixture
def reduced(tiny_bundle: Path) -> Path:
    reduce_draft(tiny_bundle, IDS)
    return tiny_bundle


def test_proposals_are_target_tokens(reduced: Path) -> None:
    engines = find_backend("onnxruntime").open_engines(open_bundle(reduced), EngineOptions())
    prompt = list(b"the quick brown fox")
    engines.target.prefill(prompt[:10], 0)
    engines.drafter.inject(engines.target.taps, 10, 0)
    for position, accepted in ((10, 3), (13, 1), (14, 5)):
        block = np.array([prompt[position]] + [MASK] * (BLOCK - 1))
        hidden = reference(DRAFTER, DRAFTER.embedding[block], DRAFTER.embedding[prompt[:position]])
        wanted = reference_logits(DRAFTER, hidden)[1:][:, IDS].argmax(-1)
        assert engines.drafter.draft(prompt[position], position, BLOCK) == [IDS[row] for row in wanted]
        engines.target.verify(prompt[position : position + accepted], position)
        engines.drafter.inject(engines.target.taps, accepted, position)


def test_drafted_text_equals_plain_text(reduced: Path) -> None:
    accepted = 0
    with load(reduced) as session:
        for prompt in (b"a", b"the quick", b"x" * 40):
            drafted = list(session.tokens(list(prompt), block=BLOCK))
            accepted += session.statistics.accepted
            assert drafted == list(session.tokens(list(prompt), draft=False))
        assert accepted > 0


def test_a_whole_head_needs_no_map(tiny_bundle: Path) -> None:
    assert draft_token_ids(open_bundle(tiny_bundle)) is None


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.array(IDS[:-1], "<i4"), "28"),
        (np.array([*IDS[:-1], VOCAB], "<i4"), f"below {VOCAB}"),
        (np.array([*IDS[:-1], -1], "<i4"), f"below {VOCAB}"),
        (np.array([*IDS[:-1], IDS[0]], "<i4"), "different tokens"),
        (np.array(IDS, "<i8"), "56 bytes"),
    ],
    ids=["cut short", "past the end", "negative", "twice", "another width"],
)
def test_a_map_that_cannot_be_one_is_refused(reduced: Path, data: np.ndarray, said: str) -> None:
    """With a manifest whose hashes fit it, as a faulty build would write."""
    manifest = read_manifest(reduced)
    (reduced / "drafter/token_ids.bin").write_bytes(data.tobytes())
    write_manifest(reduced, manifest)
    with pytest.raises(BundleError, match="draft vocabulary") as caught:
        load(reduced)
    assert said in str(caught.value)


CONTRADICTIONS: dict[str, Callable[[dict[str, Any]], object]] = {
    "gives logits": lambda document: document["pairing"]["draft_vocabulary"].update(size=6),
    "for a vocabulary of 258": lambda document: document["pairing"].pop("draft_vocabulary"),
    "draft_vocabulary.size 258": lambda document: document["pairing"]["draft_vocabulary"].update(size=VOCAB),
    "not listed in files": lambda document: document["files"].pop("drafter/token_ids.bin"),
}


@pytest.mark.parametrize("said", CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(reduced: Path, said: str) -> None:
    edit_manifest(reduced, CONTRADICTIONS[said])
    with pytest.raises(BundleError) as caught:
        open_bundle(reduced)
    assert said in str(caught.value)


def test_a_map_outside_the_bundle_is_refused(reduced: Path) -> None:
    edit_manifest(reduced, lambda document: document["pairing"]["draft_vocabulary"].update(file="../token_ids.bin"))
    with pytest.raises(BundleError):
        open_bundle(reduced)
