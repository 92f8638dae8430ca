"""A sandbox in which a template can neither run for ever nor fill the memory: every step and everything it makes is
counted, and no operation starts whose result would be too large.

Jinja's own sandbox keeps templates away from the system. What they compute it leaves to them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from string import Formatter
from threading import local
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .template_budget import MOST_NUMBER, Budget, refuse, weight_of_int

_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d*)(?:\.(\*|\d*))?")
# Their regular expressions can take the square of a text's length; no published chat template uses one.
_LEFT_OUT = ("urlize", "xmlattr", "striptags", "wordwrap")
_MOST_FILL = 16
"""characters of an indent, or of what separates values, in JSON"""
_GROWING = frozenset({"replace", "join", "indent", "format"})


class _Counting(CodeGenerator):
    """Code that says when it starts a block, walks over something, or joins texts."""

    _iterated: tuple[nodes.Node, ...] = ()
    """what loops go over, until it is written"""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.step()")
        super().blockvisit(nodes, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  (Jinja's name)
        self._wrapped("joined", node.nodes, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "store":
            super().visit_Tuple(node, frame)
        else:
            self.write("environment.made(")
            super().visit_Tuple(node, frame)
            self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.made(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.made(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802
        self._iterated = (*self._iterated, node.iter)
        super().visit_For(node, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        if not any(node is other for other in self._iterated):
            return super().visit(node, *args, **kwargs)
        self._iterated = tuple(other for other in self._iterated if other is not node)
        self.write("environment.walked(")
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None

    def _wrapped(self, name: str, parts: Iterable[nodes.Node], frame: Frame) -> None:
        self.write(f"environment.{name}((")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """One `Budget` for each rendering: `begin` before it. Whatever exceeds it raises `BundleError`."""

    code_generator_class = _Counting
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, finalize=self._finalized, **options)
        self._thread = local()
        del self.globals["lipsum"]
        for name in _LEFT_OUT:
            del self.filters[name]
        self.filters.update({name: self._bounded(name, value) for name, value in self.filters.items()})
        tests: dict[str, Any] = dict(self.tests)
        self.tests.update({name: self._counted(value) for name, value in tests.items()})

    def begin(self) -> None:
        """Start to count, in this thread."""
        self._thread.budget = Budget()

    @property
    def budget(self) -> Budget:
        budget: Budget | None = getattr(self._thread, "budget", None)
        if budget is None:
            self.begin()
            budget = self._thread.budget
        return budget

    def add_filter(self, name: str, function: Callable[..., Any]) -> None:
        self.filters[name] = self._bounded(name, function)

    # What compiled templates call.

    def step(self) -> None:
        self.budget.step()

    def made(self, value: Any) -> Any:
        return self.budget.keep(value)

    def joined(self, parts: tuple[Any, ...]) -> str:
        self.budget.fits(sum(self.budget.weight(part) for part in parts))
        text: str = self.budget.keep(str_join(parts))
        return text

    def walked(self, values: Any) -> Any:
        """`values`, which a loop goes over."""
        try:
            self.budget.step(len(values))
        except TypeError:
            return values if isinstance(values, str) or not isinstance(values, Iterable) else self._each(values)
        return values

    def concat(self, pieces: Iterable[str]) -> str:
        """The pieces of a block, or of the whole."""
        parts, total = [], 0
        for piece in pieces:
            total += len(piece)
            self.budget.fits(total)
            parts.append(piece)
        text: str = self.budget.keep("".join(parts))
        return text

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.budget.step()
        self._check_operator(operator, left, right)
        return self.budget.keep(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.budget.step()
        if isinstance(__obj, BuiltinMethodType):
            args = __self._check_call(__obj.__name__, (__obj.__self__, *args), kwargs)[1:]
        for value in (*args, *kwargs.values()):
            __self.budget.weight(value)
        return __self.budget.keep(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            self._check_braces(str(value.__self__), (*args, *kwargs.values()))
            text: str = self.budget.keep(wrapped(*args, **kwargs))
            return text

        return bounded

    def _finalized(self, value: Any) -> Any:
        self.budget.weight(value)
        return value

    def _each(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.budget.step()
            yield value

    def _bounded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        given = 1 if hasattr(function, "jinja_pass_arg") else 0

        @wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            subject = self._check_call(name, args[given:], kwargs)
            for value in (*subject, *kwargs.values()):
                self.budget.weight(value)
            return self.budget.keep(function(*args[:given], *subject, **kwargs))

        return bounded

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            return function(*args, **kwargs)

        return counted

    # What an operation would make.

    def _check_operator(self, operator: str, left: Any, right: Any) -> None:
        budget = self.budget
        if operator == "+" and not isinstance(left, int | float):
            budget.fits(budget.weight(left) + budget.weight(right))
        elif operator == "*":
            counts = [value for value in (left, right) if isinstance(value, int)]
            others = [value for value in (left, right) if not isinstance(value, int | float)]
            if len(counts) == 2:
                budget.fits_number(weight_of_int(left) + weight_of_int(right))
            elif counts and others:
                budget.fits(budget.weight(others[0]) * max(counts[0], 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.fits_number(weight_of_int(left) * max(right, 1))
        elif operator == "%" and isinstance(left, str):
            self._check_percent(left, right if isinstance(right, tuple) else (right,))

    def _check_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """`args`, of which the first is what a method or a filter works on; iterators are read to their end."""
        subject, *rest = args or (None,)
        for value in (*rest, *kwargs.values()):
            if isinstance(value, int) and abs(value) > MOST_NUMBER:
                refuse(f"{name} with {value}")
            if name == "tojson" and _fill(value) > _MOST_FILL:
                refuse(f"{name} with {_fill(value)} characters between values")
        if name == "translate":
            refuse(name)
        if name not in _GROWING:
            self._check_tabs(name, subject, rest)
            return args
        budget, others = self.budget, [*rest, *kwargs.values()]
        if name == "join":
            args = tuple(list(self._each(value)) if isinstance(value, Iterator) else value for value in args)
            budget.fits(2 * sum(budget.weight(value) for value in args) + _pairs(args))
        elif name == "replace" and len(others) >= 2:
            found = max(str(subject).count(str(others[0])), 0)
            budget.fits(len(str(subject)) + found * len(str(others[1])))
        elif name == "indent":
            width = max((value if isinstance(value, int) else budget.weight(value) for value in others), default=4)
            budget.fits((str(subject).count("\n") + 1) * width)
        elif name == "format":
            self._check_percent(str(subject), tuple(others))
        return args

    def _check_tabs(self, name: str, subject: Any, rest: list[Any]) -> None:
        if name == "expandtabs" and rest and isinstance(rest[0], int):
            self.budget.fits(len(subject) * max(rest[0], 1))

    def _check_percent(self, text: str, values: tuple[Any, ...]) -> None:
        fields = [found.groups("") for found in _PERCENT.finditer(text)]
        self._check_fields(text, [size for sizes in fields for size in sizes], len(fields), values)

    def _check_braces(self, text: str, values: tuple[Any, ...]) -> None:
        fields = [specification or "" for _, name, specification, _ in Formatter().parse(text) if name is not None]
        sizes = [size for specification in fields for size in re.findall(r"\d+|\{", specification)]
        self._check_fields(text, sizes, len(fields), values)

    def _check_fields(self, text: str, sizes: list[str], count: int, values: tuple[Any, ...]) -> None:
        if any(size in ("*", "{") or len(size) > 7 for size in sizes):
            refuse("a field of a width that it computes, or of more than seven digits")
        widest = max((self.budget.weight(value) for value in values), default=0)
        self.budget.fits(len(text) + sum(int(size or 0) for size in sizes) + count * widest)


def _pairs(args: tuple[Any, ...]) -> int:
    """Characters between the parts of a join: the separator is a text, the parts are what is not."""
    texts = [len(value) for value in args if isinstance(value, str)]
    lists = [len(value) for value in args if isinstance(value, list | tuple | dict)]
    return max(texts, default=0) * max(lists, default=0) if lists else sum(texts) * max(texts, default=0)


def _fill(value: Any) -> int:
    """Characters that an argument of `tojson` puts between values, once."""
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, str):
        return len(value)
    return sum(map(_fill, value)) if isinstance(value, list | tuple) else 0
