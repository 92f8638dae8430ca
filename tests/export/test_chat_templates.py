"""Chat templates as transformers renders them: named ones, tokens by name, messages with keys missing or null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from models import SPECIAL, write_target
from transformers import AutoTokenizer

from dflash_compile.export import open_target
from dflash_compile.runtime.chat import ChatTemplate
from dflash_compile.runtime.errors import CheckpointError

TOOLS = [{"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object"}}}]
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOL_USE = "TOOLS {{ tools | tojson }}" + PLAIN
HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_target(tmp_path / "t")


def settings(folder: Path, **changes: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rendered(folder: Path, messages: list[dict[str, Any]], **variables: Any) -> tuple[str, str]:
    """By the template of a bundle, and by transformers."""
    text = open_target(folder).text
    assert text.chat_template is not None
    ours = ChatTemplate(
        text.chat_template,
        bos_token=text.bos_token,
        eos_token=text.eos_token,
        tokens=text.tokens,
        tool_use=text.tool_template,
    )
    theirs = AutoTokenizer.from_pretrained(folder)
    right = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    assert isinstance(right, str)
    return ours.render(messages, variables), right


def in_settings(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": PLAIN}, {"name": "tool_use", "template": TOOL_USE}]
    settings(folder, chat_template=named)


def in_files(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(PLAIN)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)


@pytest.mark.parametrize("write", [in_settings, in_files])
@pytest.mark.parametrize("variables", [{}, {"tools": TOOLS}, {"tools": []}, {"tools": None}])
def test_the_template_for_tools_is_used_where_there_are_tools(folder: Path, write: Any, variables: Any) -> None:
    write(folder)
    ours, theirs = rendered(folder, HELLO, **variables)
    assert ours == theirs
    assert ours.startswith("TOOLS") == (variables.get("tools") is not None)


def test_a_file_of_templates_is_one_of_the_target(folder: Path) -> None:
    in_files(folder)
    (folder / "additional_chat_templates" / "._tool_use.jinja").write_bytes(b"\xff")
    assert "tool_use.jinja" in open_target(folder).files


def test_named_templates_without_a_default_are_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    settings(folder, chat_template=[{"name": "tool_use", "template": TOOL_USE}])
    with pytest.raises(CheckpointError, match="no chat template is the default"):
        open_target(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"pad_token": SPECIAL[0], "unk_token": SPECIAL[3]},
        {"pad_token": SPECIAL[0], "extra_special_tokens": {"image_token": SPECIAL[3]}},
        {},
    ],
)
def test_templates_read_every_token_that_the_tokenizer_names(folder: Path, changes: dict[str, Any]) -> None:
    settings(folder, **changes)
    source = (
        "{{ bos_token }} {{ pad_token }} {{ unk_token }} {{ image_token }} {{ messages[0].content }} {{ eos_token }}"
    )
    (folder / "chat_template.jinja").write_text(source)
    ours, theirs = rendered(folder, HELLO)
    assert ours == theirs


CALL = {"type": "function", "function": {"name": "now", "arguments": {}}}
SHOWN = (
    "{% for m in messages %}{{ m.role }}:{% if 'content' in m %}{{ m.content }}{% else %}-{% endif %}"
    "{{ m.reasoning_content }}/{{ m.thinking }}/{{ m.tool_calls is defined }};{% endfor %}"
)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": "a", "tool_calls": None},
        {"role": "assistant", "content": "a", "reasoning": "why"},
        {"role": "assistant", "content": "a", "thinking": "why"},
        {"role": "assistant", "content": "a", "reasoning_content": "why", "thinking": "other"},
        {"role": "assistant", "content": "a", "reasoning_content": None, "reasoning": "why"},
    ],
    ids=lambda message: ",".join(message),
)
def test_messages_are_prepared_as_in_transformers(folder: Path, message: dict[str, Any]) -> None:
    (folder / "chat_template.jinja").write_text(SHOWN)
    ours, theirs = rendered(folder, [*HELLO, message])
    assert ours == theirs
