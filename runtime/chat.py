"""Messages to prompt text, by the checkpoint's own chat template, in a sandbox: a template is code from whoever made
the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
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


class ChatTemplate:
    """A template, compiled when it is first used, with the globals and filters that published templates expect."""

    def __init__(self, source: str, *, bos_token: str | None, eos_token: str | None) -> None:
        environment = BoundedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        environment.add_filter("tojson", _tojson)
        self._tokens = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._environment, self._source = environment, source

    def render(self, messages: Sequence[Message], variables: Mapping[str, Any] | None = None) -> str:
        """The prompt that asks for the assistant's next message. `variables` are whatever else the template reads:
        `enable_thinking`, `tools`.

        Raises `UsageError` where the template refuses the messages or a variable is one of its own, `BundleError` where
        it cannot be read.
        """
        given = {"tools": None, "documents": None, **{str(name): value for name, value in (variables or {}).items()}}
        if taken := sorted(OWN & given.keys()):
            raise UsageError(
                f"chat_template_kwargs name {', '.join(taken)}",
                why="the session gives the template those itself",
                fix="leave them out",
            )
        self._environment.begin()
        template = self._template
        with foreign_errors(
            UsageError,
            "the chat template refuses these messages",
            fix="check their roles and order, or generate with raw=True",
        ):
            return template.render(messages=list(messages), add_generation_prompt=True, **self._tokens, **given)

    @cached_property
    def _template(self) -> Template:
        # Not before it is needed: raw prompts do without a template, so a bad one must not keep the bundle from
        # loading.
        with foreign_errors(BundleError, "the chat template cannot be read", fix="generate with raw=True"):
            if len(self._source) > _LONGEST:
                raise ValueError(f"it has {len(self._source)} characters; the longest published ones have 30,000")
            try:
                return self._environment.from_string(self._source)
            except TemplateSyntaxError as fault:
                raise ValueError(f"line {fault.lineno}: {fault}") from fault


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
