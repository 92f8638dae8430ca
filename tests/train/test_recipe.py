"""The whole recipe on a tiny target: responses, plain text, training, a drafter that opens and pairs, and a second run
that goes on.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from safetensors.torch import load_file

from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.runtime.errors import DFlashError, PairingError, UsageError
from dflash_compile.train.from_drafter import options_of
from dflash_compile.train.log import read_log
from dflash_compile.train.options import TrainOptions
from dflash_compile.train.progress import TrainProgress
from dflash_compile.train.recipe import train

SHORT = {"steps": 6, "sequences": 2, "anchors": 6, "evaluate_every": 4}
OPTIONS = TrainOptions(
    layers=1, block=4, response_tokens=600, response_limit=24, text_tokens=400, loss_vocabulary=64, held_out=5, **SHORT
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = models.write_target(
        tmp_path_factory.mktemp("target"), "llama", num_hidden_layers=4, max_position_embeddings=1024
    )
    with (folder / "chat_template.jinja").open("a") as template:
        template.write("{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}")
    return folder


def test_a_drafter_comes_out_that_pairs_with_its_target(target: Path, tmp_path: Path) -> None:
    checkpoint = open_target(target)
    seen: list[TrainProgress] = []
    result = train(checkpoint, tmp_path / "drafter", OPTIONS, tmp_path / "work", on_progress=seen.append)
    drafter = result.drafter
    assert result.steps == 6
    opened = open_drafter(drafter)
    assert pair(checkpoint, opened).drafter.block == 4
    assert opened.text_hash
    assert opened.template_hash
    assert opened.thinking is True, "the template's default, which prompts were rendered with"
    assert {progress.phase for progress in seen} == {"plain text", "responses", "training"}
    assert "6 steps" in (drafter / "README.md").read_text()
    log = [json.loads(line) for line in (tmp_path / "work" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == [1, 2, 3, 4, 5, 6]
    assert [entry["step"] for entry in log if "tau" in entry] == [4, 6]
    assert log[-1]["tau"] == result.acceptance.tau
    assert result.curve == drafter / "curve.png"
    assert (drafter / "curve.png").read_bytes() == (tmp_path / "work" / "curve.png").read_bytes()

    with pytest.raises(UsageError):
        train(checkpoint, drafter, OPTIONS, tmp_path / "work")
    seen.clear()
    train(checkpoint, drafter, replace(OPTIONS, steps=8), tmp_path / "work", force=True, on_progress=seen.append)
    assert {progress.phase for progress in seen} == {"training"}, "responses are kept"
    assert [progress.event.clock.step for progress in seen if progress.event] == [7, 8]
    seen.clear()
    again = train(
        checkpoint, drafter, replace(OPTIONS, steps=8), tmp_path / "work", force=True, on_progress=seen.append
    )
    assert (again.steps, seen) == (0, []), "the run was over"
    assert again.acceptance.cycles > 0, "and is measured all the same"
    train(
        checkpoint,
        drafter,
        replace(OPTIONS, steps=2),
        tmp_path / "work",
        force=True,
        on_progress=seen.append,
        restart=True,
    )
    assert [progress.event.clock.step for progress in seen if progress.event] == [1, 2]
    assert [entry.step for entry in read_log(tmp_path / "work" / "log.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    "wrong", [{"layers": 2}, {"taps": (0, 1)}, {"block": 6}, {"mask_id": 9}, {"draft_vocabulary": 40}]
)
def test_a_work_folder_of_other_options_is_refused(target: Path, tmp_path: Path, wrong: dict[str, object]) -> None:
    checkpoint = open_target(target)
    train(checkpoint, tmp_path / "drafter", OPTIONS, tmp_path / "work")
    with pytest.raises(DFlashError) as caught:
        train(checkpoint, tmp_path / "other", replace(OPTIONS, **wrong), tmp_path / "work")  # type: ignore[arg-type]
    assert "another" in str(caught.value)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": 0.0},
        {"learning_rate": -1.0},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"minutes": math.nan},
        {"minutes": math.inf},
        {"seed": -1},
        {"seed": 10**30},
    ],
    ids=str,
)
def test_numbers_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        replace(OPTIONS, **wrong)


def test_what_cannot_be_trained_is_refused_before_anything_is_written(target: Path, tmp_path: Path) -> None:
    checkpoint = open_target(target)
    flat = open_target(models.write_target(tmp_path / "flat", "llama", num_hidden_layers=1))
    with pytest.raises(UsageError, match="single layer"):
        train(flat, tmp_path / "drafter", OPTIONS, tmp_path / "work")
    with pytest.raises(UsageError, match="5 layers for a target of 4"):
        train(checkpoint, tmp_path / "drafter", replace(OPTIONS, layers=5), tmp_path / "work")
    for taps in ((0, 3), (1, 1), (-1, 2), ()):
        with pytest.raises(UsageError, match="taps"):
            train(checkpoint, tmp_path / "drafter", replace(OPTIONS, taps=taps), tmp_path / "work")
    with pytest.raises(UsageError, match="feature folder"):
        train(checkpoint, tmp_path / "drafter", OPTIONS, tmp_path / "work", (tmp_path / "none",))
    assert [path.name for path in tmp_path.iterdir()] == ["flat"]


@pytest.mark.parametrize(
    ("template", "said"),
    [("{% for %}", "cannot be used"), ("{{ raise_exception('no') }}", "cannot be used"), ("hello", "leaves out")],
)
def test_a_chat_template_that_gives_no_prompt_is_refused(tmp_path: Path, template: str, said: str) -> None:
    folder = models.write_target(tmp_path / "target", "llama", max_position_embeddings=1024)
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match=said):
        train(open_target(folder), tmp_path / "drafter", replace(OPTIONS, text_tokens=0), tmp_path / "work")


def test_the_features_of_another_run_may_be_all_there_is(target: Path, tmp_path: Path) -> None:
    train(open_target(target), tmp_path / "first", OPTIONS, tmp_path / "work")
    options = replace(OPTIONS, response_tokens=0, text_tokens=0)
    with pytest.raises(UsageError, match="holds no sequence"):
        train(open_target(target), tmp_path / "second", options, tmp_path / "own")
    train(open_target(target), tmp_path / "second", options, tmp_path / "own", (tmp_path / "work" / "features",))
    assert _tensors(tmp_path / "second").keys() == _tensors(tmp_path / "first").keys()
    assert not (tmp_path / "own" / "features" / "index.jsonl").exists(), "nothing was generated for it"


def test_a_damaged_training_state_is_refused(target: Path, tmp_path: Path) -> None:
    train(open_target(target), tmp_path / "drafter", OPTIONS, tmp_path / "work")
    state = tmp_path / "work" / "state.safetensors"
    for damage in (state.read_bytes()[:-5], b""):
        state.write_bytes(damage)
        with pytest.raises(UsageError, match="damaged"):
            train(open_target(target), tmp_path / "other", OPTIONS, tmp_path / "work")


def test_a_target_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    folder = models.write_target(tmp_path / "plain", "llama", num_hidden_layers=4, max_position_embeddings=1024)
    for file in folder.glob("chat_template*"):
        file.unlink()
    config = folder / "tokenizer_config.json"
    if config.exists():
        settings = json.loads(config.read_text())
        settings.pop("chat_template", None)
        config.write_text(json.dumps(settings))
    with pytest.raises(UsageError, match="chat template"):
        train(open_target(folder), tmp_path / "drafter", OPTIONS, tmp_path / "work")


def _tensors(drafter: Path) -> dict[str, torch.Tensor]:
    return load_file(drafter / "model.safetensors")


def test_training_starts_from_another_drafter(target: Path, tmp_path: Path) -> None:
    """A step too small to see leaves the weights it began with, at another block, and the state remembers where it
    began.
    """
    checkpoint = open_target(target)
    start = open_drafter(models.write_drafter(tmp_path / "start", target, layers=1, block=8, taps=(0, 1)))
    options = replace(OPTIONS, **(options_of(start.spec) | {"block": 4, "steps": 1, "learning_rate": 1e-12}))
    written = train(checkpoint, tmp_path / "next", options, tmp_path / "work", start=start).drafter
    for name, tensor in _tensors(written).items():
        assert torch.equal(tensor, _tensors(tmp_path / "start")[name].to(torch.bfloat16)), name
    assert open_drafter(written).spec.block == 4
    assert "the drafter start" in (written / "README.md").read_text()
    with pytest.raises(UsageError, match="of another run"):
        train(checkpoint, written, replace(options, steps=2), tmp_path / "work", force=True)
    for source, name in ((start.path, "the drafter it starts from"), (target, "the target")):
        with pytest.raises(UsageError, match=f"replace {name}"):
            train(checkpoint, source, options, tmp_path / "work", force=True, start=start)


def test_a_drafter_that_samples_from_the_anchor_goes_on_as_one_and_can_start_from_one_that_does_not(
    target: Path, tmp_path: Path
) -> None:
    """The layout that says so is chosen for it, also where it proposes every token."""
    start = open_drafter(models.write_drafter(tmp_path / "start", target, layers=1, block=4))
    options = replace(OPTIONS, taps=(0, 1), mask_id=models.MASK, steps=1, sample_from_anchor=True)
    written = train(open_target(target), tmp_path / "drafter", options, tmp_path / "work", start=start).drafter
    opened = open_drafter(written)
    assert (opened.spec.dialect, opened.spec.block, opened.spec.sample_from_anchor, opened.spec.draft_vocab) == (
        "speculators",
        4,
        True,
        None,
    )
    assert options_of(opened.spec)["sample_from_anchor"] is True
    assert "the first is of the anchor's row" in (written / "README.md").read_text()
    with pytest.raises(UsageError, match="of another run"):
        train(
            open_target(target),
            written,
            replace(options, sample_from_anchor=False, steps=2),
            tmp_path / "work",
            force=True,
            start=start,
        )


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        ({"taps": (0, 2)}, "taps is [0, 2], not [0, 1]"),
        ({"mask_id": 9}, "mask_id is 9, not 3"),
        ({"intermediate_size": 96}, "intermediate is 96, not 128"),
        ({"num_key_value_heads": 4}, "kv_heads is 4, not 2"),
        ({"rope_theta": 5.0}, "rope_theta is 5.0, not"),
        (
            {"layer_types": ["sliding_attention"], "use_sliding_window": True, "sliding_window": 8},
            "windows is [8], not [None]",
        ),
    ],
    ids=str,
)
def test_a_drafter_of_another_shape_cannot_be_the_start(
    target: Path, tmp_path: Path, shape: dict[str, Any], named: str
) -> None:
    start = open_drafter(models.write_drafter(tmp_path / "start", target, **({"layers": 1, "block": 4} | shape)))
    options = replace(OPTIONS, taps=(0, 1), mask_id=models.MASK)
    with pytest.raises(PairingError) as caught:
        train(open_target(target), tmp_path / "drafter", options, tmp_path / "work", start=start)
    assert named in caught.value.why
    assert not (tmp_path / "work").exists()


def test_a_start_names_every_difference_and_another_targets_drafter_is_refused(target: Path, tmp_path: Path) -> None:
    start = open_drafter(models.write_drafter(tmp_path / "start", target, layers=1, taps=(0, 2), mask_id=9))
    with pytest.raises(PairingError) as caught:
        train(
            open_target(target),
            tmp_path / "drafter",
            replace(OPTIONS, layers=2, taps=(0, 1)),
            tmp_path / "work",
            start=start,
        )
    assert caught.value.why.startswith("it has 1 layers, not 2; ")
    assert [name for name in ("taps", "mask_id", "hidden", "block") if f"{name} is" in caught.value.why] == [
        "taps",
        "mask_id",
    ]
    alien = models.write_drafter(tmp_path / "alien", target, layers=1, block=4, num_target_layers=12)
    options = replace(OPTIONS, taps=(0, 1), mask_id=models.MASK)
    with pytest.raises(PairingError, match="target of 12 layers"):
        train(open_target(target), tmp_path / "drafter", options, tmp_path / "work", start=open_drafter(alien))
