"""Rows given in place of embedded tokens, against transformers' `generate(inputs_embeds=…)`: over the edges of chunks,
with and without drafting.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from models import VOCAB
from transformers import AutoModelForImageTextToText

from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.export import families
from dflash_compile.export.registry import names
from dflash_compile.runtime import load
from dflash_compile.runtime.errors import UsageError
from dflash_compile.runtime.session import Session

CONTEXT, BLOCK, NEW, IMAGE = 256, 6, 24, VOCAB - 1
FAMILIES: dict[str, dict[str, Any]] = {
    "muse_glimmer": {"sliding_window": 7},
    "muse_spark": {
        "sliding_window": 7,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "moe_hidden_size": 32,
    },
    "gemma3": {"sliding_window": 8},
}
# A chunk of prefill has 64 rows: spans of the start, of the end, over one edge, up to one, over a whole chunk.
PLACES = [(3, [(0, 1)]), (20, [(0, 5), (15, 20)]), (150, [(60, 70), (120, 128), (149, 150)]), (150, [(3, 140)])]


def write_pair(folder: Path, family: str) -> tuple[Path, Path]:
    target = models.write_target(folder / "target", family, **FAMILIES[family])
    if family == "gemma3":
        like = models.write_target(folder / "like", "llama")
        return target, models.write_drafter(folder / "drafter", like, block=BLOCK, taps=(2, 0))
    return target, models.write_assistant(folder / "drafter", target, block=BLOCK, layer_types=["full_attention"])


@pytest.fixture(scope="module", params=["muse_glimmer", "gemma3", pytest.param("muse_spark", marks=pytest.mark.slow)])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def session(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    bundle = build(*pair, tmp_path_factory.mktemp("out") / "bundle", BuildOptions(precision="fp32", context=CONTEXT))
    with load(bundle) as loaded:
        yield loaded


def requests() -> Iterator[tuple[list[int], list[tuple[int, np.ndarray]]]]:
    """Prompts of ids, with placeholders, and rows for them."""
    random = np.random.default_rng(2)
    for length, places in PLACES:
        ids = random.integers(4, VOCAB - 4, length).tolist()
        for start, end in places:
            ids[start:end] = [IMAGE] * (end - start)
        yield ids, [(start, random.standard_normal((end - start, 64), np.float32)) for start, end in places]


def greedy(model: Any, rows: torch.Tensor) -> list[int]:
    """transformers' answer to embedded `rows` [1, S, H].

    Its `generate` takes none for Gemma 3, so that the model is called token by token there.
    """
    if model.config.model_type != "gemma3":
        return model.generate(inputs_embeds=rows, do_sample=False, max_new_tokens=NEW)[0].tolist()
    said: list[int] = []
    while len(said) < NEW and not (said and said[-1] in model.generation_config.eos_token_id):
        said.append(int(model(inputs_embeds=rows).logits[0, -1].argmax()))
        rows = torch.cat([rows, model.get_input_embeddings()(torch.tensor([said[-1:]]))], 1)
    return said


def test_answers_are_those_of_transformers(pair: tuple[Path, Path], session: Session) -> None:
    model = AutoModelForImageTextToText.from_pretrained(pair[0], dtype=torch.float32).eval()
    changed = 0
    for ids, embeds in requests():
        with torch.no_grad():
            rows = model.get_input_embeddings()(torch.tensor([ids]))
            for start, given in embeds:
                rows[0, start : start + len(given)] = torch.from_numpy(given)
            wanted = greedy(model, rows)
        for how in ({"draft": False}, {"block": BLOCK}, {}, {"draft": False, "lookup": True}):
            assert list(session.tokens(ids, max_new_tokens=NEW, inputs_embeds=embeds, **how)) == wanted, how
        # The request before leaves no row behind.
        changed += list(session.tokens(ids, max_new_tokens=NEW, draft=False)) != wanted
    assert changed == len(PLACES)


@pytest.mark.parametrize("pair", ["muse_glimmer"], indirect=True)
def test_features_of_a_picture_give_what_transformers_says_of_it(pair: tuple[Path, Path], session: Session) -> None:
    model = AutoModelForImageTextToText.from_pretrained(pair[0], dtype=torch.float32).eval()
    ids, grid = [5, 6, 7, *[IMAGE] * 4, 8, 9], torch.tensor([[1, 4, 4]])
    answers = []
    for seed in range(2):
        patches = torch.randn(16, 2 * 3 * 14 * 14, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wanted = model.generate(
                torch.tensor([ids]), pixel_values=patches, image_grid_thw=grid, do_sample=False, max_new_tokens=NEW
            )
            (rows,) = model.model.get_image_features(patches, grid).pooler_output
        answers.append(list(session.tokens(ids, max_new_tokens=NEW, inputs_embeds=[(3, rows)])))
        assert answers[-1] == wanted[0, len(ids) :].tolist()
    assert answers[0] != answers[1]


@pytest.mark.parametrize("pair", ["muse_glimmer"], indirect=True)
def test_rows_that_are_the_embeddings_change_nothing(pair: tuple[Path, Path], session: Session) -> None:
    embedding = AutoModelForImageTextToText.from_pretrained(pair[0], dtype=torch.float32).get_input_embeddings()
    ids = np.random.default_rng(5).integers(4, VOCAB - 4, 100)
    with torch.no_grad():
        rows = embedding(torch.from_numpy(ids)).numpy()
    wanted = list(session.tokens(ids, max_new_tokens=NEW))
    assert list(session.tokens(ids, max_new_tokens=NEW, inputs_embeds=[(80, rows[80:]), (0, rows[:70])])) == wanted


@pytest.mark.parametrize("pair", ["muse_glimmer"], indirect=True)
def test_a_quantised_bundle_drafts_what_it_says_plainly(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with load(build(*pair, tmp_path / "bundle", BuildOptions(precision="int8", context=CONTEXT))) as session:
        for ids, embeds in requests():
            wanted = list(session.tokens(ids, max_new_tokens=NEW, inputs_embeds=embeds, draft=False))
            assert list(session.tokens(ids, max_new_tokens=NEW, inputs_embeds=embeds, block=BLOCK)) == wanted
            assert list(session.tokens(ids, max_new_tokens=NEW, draft=False)) != wanted


@pytest.mark.parametrize("pair", ["muse_glimmer"], indirect=True)
def test_what_is_wrong_is_said_at_once(session: Session) -> None:
    rows = np.zeros((2, 64), np.float32)
    with pytest.raises(UsageError, match="positions 2 to 3"):
        session.tokens([5, 6, 7], inputs_embeds=[(2, rows)])
    with pytest.raises(UsageError, match="text"):
        session.generate("what is in this picture?", inputs_embeds=[(0, rows)])


@pytest.mark.parametrize("family", names(families.__name__))
def test_targets_of_multimodal_checkpoints_alone_take_rows(family: str) -> None:
    assert families.family_of(family).multimodal == (family in models.VISION)
