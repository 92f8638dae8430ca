"""Messages to prompt text, by the checkpoint's own chat template, in a sandbox: a template is code from whoever made
the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser

from .bounded_template import BoundedEnvironment
from .errors import BundleError, UsageError
from .foreign import foreign_errors

Message = Mapping[str, Any]
"""`role` and `content` at least; whatever else the template reads"""
OWN = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
"""names that a template gets from here and nowhere else"""
_LONGEST = 1 << 20
DEFAULT, TOOL_USE = "default", "tool_use"
"""names of templates: the second is used where `tools` are given, if a checkpoint has it"""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""names of one key of messages, by preference"""


class ChatTemplate:
    """A template, compiled when it is first used, with the globals and filters that published templates expect."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        tokens: Mapping[str, str] | None = None,
        tool_use: str | None = None,
    ) -> None:
        """`tokens` are the checkpoint's other special tokens, by the names that templates know them by; `tool_use` is
        its template for chats with tools, where that is one of its own.
        """
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        environment.add_filter("tojson", _tojson)
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._named = {name: token for name, token in (tokens or {}).items() if name not in OWN}
        self._environment, self._sources = environment, {DEFAULT: source} | ({TOOL_USE: tool_use} if tool_use else {})
        self._compiled: dict[str, Template] = {}

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> str:
        """The prompt that asks for the assistant's next message. `variables` are whatever else the template reads:
        `enable_thinking`, `tools`.

        Raises `UsageError` where the template refuses the messages or a variable is one of its own, `BundleError` where
        it cannot be read.
        """
        given = {
            "tools": None,
            "documents": None,
            **self._named,
            **{str(name): value for name, value in (variables or {}).items()},
        }
        if taken := sorted(OWN & given.keys()):
            raise UsageError(
                f"chat_template_kwargs name {', '.join(taken)}",
                why="the session gives the template those itself",
                fix="leave them out",
            )
        self._environment.begin()
        template = self._template(TOOL_USE if given["tools"] is not None and TOOL_USE in self._sources else DEFAULT)
        with foreign_errors(
            UsageError,
            "the chat template refuses these messages",
            fix="check their roles and order, or generate with raw=True",
        ):
            return template.render(
                messages=list(map(_prepared, messages)), add_generation_prompt=True, **self._tokens, **given
            )

    def _template(self, name: str) -> Template:
        # Not before it is needed: raw prompts do without a template, so a bad one must not keep the bundle from
        # loading.
        if name not in self._compiled:
            with foreign_errors(BundleError, "the chat template cannot be read", fix="generate with raw=True"):
                if len(self._sources[name]) > _LONGEST:
                    raise ValueError(
                        f"it has {len(self._sources[name])} characters; the longest published ones have 30,000"
                    )
                try:
                    self._compiled[name] = self._environment.from_string(self._sources[name])
                except TemplateSyntaxError as fault:
                    raise ValueError(f"line {fault.lineno}: {fault}") from fault
        return self._compiled[name]


def _prepared(message: Message) -> dict[str, Any]:
    """`message` as transformers hands it to templates: no key without a value, and reasoning under every name that
    templates read it by.
    """
    given = {str(key): value for key, value in message.items() if value is not None}
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    return given if reasoning is None else {"thinking": reasoning, **given, "reasoning_content": reasoning}


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what to train on; for a prompt it means nothing, but its text
    stays.
    """

    tags = {"generation"}  # noqa: RUF012  (jinja2's own way to say it)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models were never trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
