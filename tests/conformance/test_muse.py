"""A Muse pair made by transformers' own classes, built into a bundle: against `generate(...,
speculation_type="dflash")`, cycle by cycle.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import models
import pytest
import torch
from models import VOCAB
from safetensors.torch import load_file, save_file
from transformers import MuseGlimmerAssistantModel, MuseGlimmerForConditionalGeneration

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.runtime import load
from dflash_compile.runtime.session import Session
from dflash_compile.runtime.statistics import Recorder

CONTEXT, BLOCK, NEW = 256, 6, 48
SPOKEN = (40, 90)
"""tokens with opposite rows of a large head: the target and the drafter say one or the other mostly, so that proposals
stand now and then"""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Windows of 7 and 6 rows, in rings of 128: prompts and answers cross both, in prefill, while verifying and after
    rollback.
    """
    folder = tmp_path_factory.mktemp("muse")
    target = models.write_target(folder / "target", "muse_glimmer", sliding_window=7, num_hidden_layers=5)
    weights = load_file(target / "model.safetensors")
    row = weights["lm_head.weight"][SPOKEN[0]].clone()
    weights["lm_head.weight"][list(SPOKEN)] = 10 * torch.stack([row, -row])
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    return target, models.write_assistant(
        folder / "drafter", target, block=BLOCK, taps=(2, 0), layer_types=kinds, sliding_window=6
    )


@pytest.fixture(scope="module")
def session(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    bundle = build(*pair, tmp_path_factory.mktemp("out") / "bundle", BuildOptions(precision="fp32", context=CONTEXT))
    with load(bundle) as loaded:
        yield loaded


class Pieces:
    """A streamer that keeps what every cycle of `generate` produced."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.lengths.append(value.numel())

    def end(self) -> None:
        pass


def test_the_bundle_says_and_accepts_what_transformers_does(
    pair: tuple[Path, Path], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = (
        MuseGlimmerForConditionalGeneration.from_pretrained(pair[0], dtype=torch.float32),
        MuseGlimmerAssistantModel.from_pretrained(pair[1], dtype=torch.float32),
    )
    cycles: list[int] = []
    count = Recorder.cycle

    def cycle(self: Recorder, drafted: bool, offered: int, accepted: int) -> None:
        cycles.append(accepted)
        count(self, drafted, offered, accepted)

    monkeypatch.setattr(Recorder, "cycle", cycle)
    generator, partial = torch.Generator().manual_seed(1), 0
    for length in (3, 9, 110, 150):
        prompt = torch.randint(4, VOCAB - 4, (1, length), generator=generator)
        pieces = Pieces()
        wanted = target.generate(
            prompt,
            assistant_model=drafter,
            speculation_type="dflash",
            do_sample=False,
            max_new_tokens=NEW,
            streamer=pieces,
            eos_token_id=None,
        )
        cycles.clear()
        found = list(session.tokens(prompt[0].tolist(), max_new_tokens=NEW, block=BLOCK))
        assert found == wanted[0, length:].tolist()
        produced = [accepted + 1 for accepted in cycles]
        produced[-1] -= sum(produced) + 1 - NEW  # the last cycle is cut where the answer ends
        assert produced == pieces.lengths[2:], "after the prompt and the token that prefill chose"
        partial += sum(0 < accepted < BLOCK - 1 for accepted in cycles)
    assert partial >= 10


def test_layers_with_windows_keep_rings(session: Session) -> None:
    graphs = [*session.manifest.target.graphs, *session.manifest.drafter.graphs]
    rows = {graph.role: [port.shape[2] for port in graph.inputs if port.name.startswith("k_cache")] for graph in graphs}
    assert rows == {
        "target": [CONTEXT, 128, 128, 128, CONTEXT],
        "inject": [128, CONTEXT, 128],
        "draft": [128, CONTEXT, 128],
    }
    assert {graph.widest for graph in graphs} == {64}


def test_a_tap_off_by_one_accepts_less(pair: tuple[Path, Path], session: Session, tmp_path: Path) -> None:
    """The same drafter over the layers after its own: it still answers as the target does, and other proposals
    stand.
    """
    shutil.copytree(pair[1], tmp_path / "drafter")
    config = json.loads((tmp_path / "drafter" / "config.json").read_text())
    (tmp_path / "drafter" / "config.json").write_text(json.dumps(config | {"target_layer_ids": [3, 1]}))
    bundle = build(pair[0], tmp_path / "drafter", tmp_path / "bundle", BuildOptions(precision="fp32", context=CONTEXT))
    prompt = [5, 6, 7, 8, 9]
    wanted = list(session.tokens(prompt, max_new_tokens=NEW, block=BLOCK))
    accepted = session.statistics.accepted_at
    with load(bundle) as shifted:
        assert list(shifted.tokens(prompt, max_new_tokens=NEW, block=BLOCK)) == wanted
        assert shifted.statistics.accepted_at != accepted
