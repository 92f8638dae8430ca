"""How a chat template is told to think, and what the pairing makes of a drafter that learned from one mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from models import CHAT_TEMPLATE, write_drafter, write_target

from dflash_compile.compile.options import BuildOptions
from dflash_compile.compile.pair_sizes import decide
from dflash_compile.export import open_drafter, open_target, pair
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint, TextSource
from dflash_compile.export.checkpoints.drafter_folder import trained_with
from dflash_compile.export.checkpoints.thinking import ThinkingSwitch, thinking_switch
from dflash_compile.runtime.errors import CheckpointError, UsageError

ON_BY_DEFAULT = (
    CHAT_TEMPLATE + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
OFF_BY_DEFAULT = CHAT_TEMPLATE + "{% if thinking %}<think>{% else %}</think>{% endif %}"
SETS_ITSELF = (
    "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}{{ '' if enable_thinking else"
    " '/no_think' }}" + CHAT_TEMPLATE
)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        (ON_BY_DEFAULT, ThinkingSwitch("enable_thinking", True)),
        (OFF_BY_DEFAULT, ThinkingSwitch("thinking", False)),
        (SETS_ITSELF, ThinkingSwitch("enable_thinking", True)),
        (
            CHAT_TEMPLATE + "{{ 'auto' if enable_thinking is not defined else enable_thinking }}",
            ThinkingSwitch("enable_thinking", None),
        ),
        (CHAT_TEMPLATE, None),
        (CHAT_TEMPLATE + "{{ enable_thinking and '' or '' }}", None),
        ("{% set thinking = messages[0].thinking %}{{ thinking }}", None),
        ("{{ raise_exception('no') if enable_thinking else '' }}", None),
        ("{% if enable_thinking %}", None),
        (None, None),
    ],
)
def test_the_switch_of_a_template(template: str | None, found: ThinkingSwitch | None) -> None:
    assert thinking_switch(TextSource(b"", template)) == found


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[TargetCheckpoint, DrafterCheckpoint]:
    """A target that thinks unless it is told not to, and a drafter that says nothing of that."""
    folder = tmp_path_factory.mktemp("models")
    target = write_target(folder / "target")
    (target / "chat_template.jinja").write_text(ON_BY_DEFAULT)
    return open_target(target), open_drafter(write_drafter(folder / "drafter", target))


@pytest.mark.parametrize(("trained", "said"), [(None, "not known"), (True, None), (False, "trained without thinking")])
def test_the_pairing_remarks_on_what_a_chat_will_ask_for(
    models: tuple[TargetCheckpoint, DrafterCheckpoint], trained: bool | None, said: str | None
) -> None:
    pairing = pair(models[0], replace(models[1], thinking=trained))
    assert (pairing.switch, pairing.thinking) == (ThinkingSwitch("enable_thinking", True), trained)
    assert [said in warning for warning in pairing.warnings if said] == [True] * bool(said)
    assert len(pairing.warnings) == bool(said)


def test_a_build_can_say_how_the_drafter_was_trained(models: tuple[TargetCheckpoint, DrafterCheckpoint]) -> None:
    assert decide(*models, BuildOptions(drafter_thinking=False)).pairing.thinking is False
    recorded = replace(models[1], thinking=True)
    assert decide(models[0], recorded, BuildOptions()).pairing.thinking is True
    assert decide(models[0], recorded, BuildOptions(drafter_thinking=True)).pairing.thinking is True


def test_a_build_cannot_say_what_is_not_so(models: tuple[TargetCheckpoint, DrafterCheckpoint]) -> None:
    with pytest.raises(UsageError, match="trained with thinking") as caught:
        decide(models[0], replace(models[1], thinking=True), BuildOptions(drafter_thinking=False))
    assert caught.value.where == "--drafter-thinking"
    plain = replace(models[0], text=replace(models[0].text, chat_template=CHAT_TEMPLATE))
    with pytest.raises(UsageError, match="no switch for thinking"):
        decide(plain, models[1], BuildOptions(drafter_thinking=True))
    assert pair(plain, replace(models[1], thinking=True)).warnings == ()


@pytest.mark.parametrize(
    ("record", "found"),
    [({}, None), ({"thinking": None}, None), ({"thinking": True}, True), ({"thinking": False}, False)],
)
def test_a_drafters_own_record(
    models: tuple[TargetCheckpoint, DrafterCheckpoint], tmp_path: Path, record: dict[str, Any], found: bool | None
) -> None:
    drafter = write_drafter(tmp_path / "d", models[0].path, trained_with=record)
    assert open_drafter(drafter).thinking is found


def test_a_record_that_is_no_answer_is_refused() -> None:
    with pytest.raises(CheckpointError, match="thinking cannot be 'off'"):
        trained_with({"trained_with": {"thinking": "off"}})
