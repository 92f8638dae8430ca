"""What a bundle's pairing says beyond shapes: the tokens that a drafter proposes, and how it was trained to be asked;
one bundle of both.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from models import CHAT_TEMPLATE, IM_END, write_speculators, write_target

from dflash_compile.runtime.bundle.read import read_manifest

IDS = (IM_END, *range(100, 140))


THINKING = CHAT_TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_target(tmp_path_factory.mktemp("target") / "target")
    (folder / "chat_template.jinja").write_text(THINKING)
    return folder


@pytest.fixture(scope="module")
def drafter(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speculators(tmp_path_factory.mktemp("drafter") / "drafter", target, IDS, own_head=False)


@pytest.fixture(scope="module")
def bundle(target: Path, drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dflash_compile.cli.main import main

    path = tmp_path_factory.mktemp("bundles") / "bundle"
    assert (
        main(
            [
                "build",
                str(target),
                str(drafter),
                "-o",
                str(path),
                "--max-context",
                "64",
                "--drafter-thinking",
                "off",
                "-q",
            ]
        )
        == 0
    )
    return path


def test_it_says_how_many_tokens_can_be_proposed(cli, drafter: Path, bundle: Path) -> None:
    shown = cli("inspect", str(drafter))
    assert (shown.code, "speculators" in shown.out) == (0, True)
    assert cli("inspect", str(drafter), "--json").document["spec"]["draft_vocab"] == len(IDS)
    assert f"{len(IDS)} of 384 tokens" in cli("inspect", str(bundle)).out
    vocabulary = read_manifest(bundle).pairing.draft_vocabulary
    assert vocabulary is not None
    assert (bundle / vocabulary.file).stat().st_size == 4 * len(IDS)


def test_it_says_how_the_drafter_was_trained_and_run_notes_a_chat_that_asks_otherwise(cli, bundle: Path) -> None:
    manifest = read_manifest(bundle)
    record = manifest.pairing.thinking
    assert record is not None
    assert (record.variable, record.default, record.drafter, manifest.config["drafter_thinking"]) == (
        "enable_thinking",
        True,
        False,
        "off",
    )
    assert (
        "switched by enable_thinking, on where that is not set; the drafter was trained with it off"
        in cli("inspect", str(bundle)).out
    )
    run = ("run", str(bundle), "--prompt", "the quick", "--max-new-tokens", "8")
    noted, quiet = cli(*run), cli(*run, "--chat-template-kwargs", '{"enable_thinking": false}')
    assert (
        noted.code,
        noted.err.count("note: The drafter was trained without thinking and this chat is with thinking"),
    ) == (0, 1)
    assert (quiet.code, "thinking" in quiet.err) == (0, False)


@pytest.mark.parametrize("said", ["maybe", "true"])
def test_only_on_and_off_can_be_said(cli, tmp_path: Path, said: str) -> None:
    assert cli("build", "t", "d", "-o", str(tmp_path / "b"), "--drafter-thinking", said).code == 2
