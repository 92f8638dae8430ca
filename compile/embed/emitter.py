"""How each language writes the few constructs that the shared loop is made of: one template, so that what is tested in
one is what runs in the other.

A template's line becomes a line of code. Blocks open with `do` and close with `end`; indentation is put in afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_OPEN, _CLOSE = "\x01", "\x02"

Names = Sequence[tuple[str, str]]
Own = Sequence[tuple[str, str, str]]


class Emitter(Protocol):
    """What the template of the loop may use. Expressions are text in both, e.g.

    `rows + 1`, where both languages write them alike.
    """

    note: str
    let: str
    var: str
    when: str
    loop_while: str
    loop_for: str
    do: str
    end: str
    both: str
    either: str
    attempt: str
    blank_lines: int
    """at most so many in a row"""

    def block_class(self, name: str, about: str, given: Names, own: Own) -> str:
        """The head of a class: fields that its constructor takes, and (name, how apps see it, value) of those it
        makes.
        """
        ...

    def function(self, name: str, arguments: Names, result: str, about: str) -> str:
        """The head of a method that may fail."""
        ...

    def method(self, name: str, arguments: Names, result: str, about: str) -> str:
        """The head of a method that cannot fail."""
        ...

    def pure(self, name: str, arguments: Names, result: str, about: str) -> str:
        """The head of a function outside every class that cannot fail."""
        ...

    def count(self, items: str) -> str: ...
    def part(self, items: str, start: str, stop: str) -> str: ...
    def last(self, items: str) -> str: ...
    def repeated(self, item: str, times: str) -> str: ...
    def has(self, items: str, item: str) -> str: ...
    def no_items(self, name: str) -> str: ...
    def numbers(self, **items: str) -> str: ...

    def upto(self, stop: str) -> str:
        """Whole numbers from 0 to `stop`, without it."""
        ...


_PYTHON_TYPES = {
    "ints": "list[int]",
    "halves": "Any",
    "emit": "Callable[[int], None]",
    "graphs": "list[Graph]",
    "graph": "Graph",
}
_SWIFT_TYPES = {
    "int": "Int",
    "ints": "[Int]",
    "halves": "[Float16]",
    "bool": "Bool",
    "emit": "(Int) throws -> Void",
    "graphs": "[Graph]",
    "graph": "Graph",
    "nothing": "[Float16]",
}
_SWIFT_ACCESS = {"hidden": "private", "kept": "private(set)", "read": "public private(set)", "open": "public"}
_SWIFT_PUBLIC = ("Generator", "generate")
"""what apps call; the rest is not theirs"""


class Python:
    """Python 3.10 and later."""

    note, let, var, attempt = "# ", "", "", ""
    when, loop_while, loop_for, do, end = "if ", "while ", "for ", f":{_OPEN}", _CLOSE
    both, either, blank_lines = " and ", " or ", 2

    def block_class(self, name: str, about: str, given: Names, own: Own) -> str:
        fields = [f"self.{field} = {field}" for field, _ in given] + [
            f"self.{field} = {value}" for field, _, value in own
        ]
        return "\n".join(
            [
                f"class {name}{self.do}",
                f'"""{about}"""',
                "",
                self._head("__init__", given, "None", method=True),
                *fields,
                _CLOSE,
            ]
        )

    def function(self, name: str, arguments: Names, result: str, about: str) -> str:
        return f'{self._head(name, arguments, result, method=True)}\n"""{about}"""'

    method = function

    def pure(self, name: str, arguments: Names, result: str, about: str) -> str:
        return f'{self._head(name, arguments, result, method=False)}\n"""{about}"""'

    def _head(self, name: str, arguments: Names, result: str, method: bool) -> str:
        listed = [
            *(["self"] if method else []),
            *(f"{argument}: {_PYTHON_TYPES.get(kind, kind)}" for argument, kind in arguments),
        ]
        return f"def {name}({', '.join(listed)}) -> {_PYTHON_TYPES.get(result, result)}{self.do}"

    def count(self, items: str) -> str:
        return f"len({items})"

    def part(self, items: str, start: str, stop: str) -> str:
        return f"{items}[{start}:{stop}]" if " " not in start + stop else f"{items}[{start} : {stop}]"

    def last(self, items: str) -> str:
        return f"{items}[-1]"

    def repeated(self, item: str, times: str) -> str:
        return f"[{item}] * ({times})"

    def has(self, items: str, item: str) -> str:
        return f"{item} in {items}"

    def no_items(self, name: str) -> str:
        return f"{name}: list[int] = []"

    def numbers(self, **items: str) -> str:
        return "{" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "}"

    def upto(self, stop: str) -> str:
        return f"range({stop})"


class Swift:
    """Swift 6 compilers, in the mode of Swift 5."""

    note, let, var, attempt = "// ", "let ", "var ", "try "
    when, loop_while, loop_for, do, end = "if ", "while ", "for ", f" {{{_OPEN}", f"{_CLOSE}}}"
    both, either, blank_lines = " && ", " || ", 1

    def block_class(self, name: str, about: str, given: Names, own: Own) -> str:
        """Fields of literal values get their types from those; others are made in the constructor, of the type or by
        the function that their value names.
        """
        taken = ", ".join(f"{field}: {_SWIFT_TYPES.get(kind, kind)}" for field, kind in given)
        made = [(field, access, value) for field, access, value in own if value.endswith(")")]
        shown = "public " if name in _SWIFT_PUBLIC else ""
        lines = [f"/// {about}", f"{shown}final class {name}{self.do}"]
        lines += [f"private let {field}: {_SWIFT_TYPES.get(kind, kind)}" for field, kind in given]
        for field, access, value in made:
            declared = "private let" if access == "hidden" else f"{_SWIFT_ACCESS[access]} var"
            lines.append(f"{declared} {field}: {_made_type(value)}")
        lines += [
            f"{_SWIFT_ACCESS[access]} var {field} = {value.lower()}"
            for field, access, value in own
            if not value.endswith(")")
        ]
        lines += ["", f"init({taken}){self.do}"]
        lines += [f"self.{field} = {field}" for field, _ in given] + [
            f"self.{field} = {value}" for field, _, value in made
        ]
        return "\n".join([*lines, self.end])

    def function(self, name: str, arguments: Names, result: str, about: str) -> str:
        return self._head(name, arguments, result, about, " throws")

    def pure(self, name: str, arguments: Names, result: str, about: str) -> str:
        return self._head(name, arguments, result, about, "")

    method = pure

    def _head(self, name: str, arguments: Names, result: str, about: str, fails: str) -> str:
        listed = ", ".join(f"_ {argument}: {_SWIFT_TYPES.get(kind, kind)}" for argument, kind in arguments)
        gives = "" if result == "None" else f" -> {_SWIFT_TYPES.get(result, result)}"
        shown = "public " if name in _SWIFT_PUBLIC else ""
        return f"/// {about}\n{shown}func {name}({listed}){fails}{gives}{self.do}"

    def count(self, items: str) -> str:
        return f"{items}.count"

    def part(self, items: str, start: str, stop: str) -> str:
        return f"Array({items}[{start}..<{stop}])"

    def last(self, items: str) -> str:
        return f"{items}[{items}.count - 1]"

    def repeated(self, item: str, times: str) -> str:
        return f"Array(repeating: {item}, count: {times})"

    def has(self, items: str, item: str) -> str:
        return f"{items}.contains({item})"

    def no_items(self, name: str) -> str:
        return f"var {name}: [Int] = []"

    def numbers(self, **items: str) -> str:
        return "[" + ", ".join(f'"{name}": {value}' for name, value in items.items()) + "]"

    def upto(self, stop: str) -> str:
        return f"0..<{stop}"


def _made_type(value: str) -> str:
    """Swift's type of the call `value`."""
    maker = value.partition("(")[0]
    return _SWIFT_TYPES.get(maker, maker)


LANGUAGES: dict[str, Emitter] = {"swift": Swift(), "python": Python()}


def indent(text: str, blank_lines: int) -> str:
    """`text` indented by its blocks; lines that only close a Python block are gone, and so are blank lines beyond
    `blank_lines`, or one in a block.
    """
    lines: list[str] = []
    depth = blank = 0
    for line in text.splitlines():
        words = line.strip()
        if words.startswith(_CLOSE):
            depth, words = depth - 1, words[1:]
            if not words:
                continue
        blank = 0 if words else blank + 1
        if blank > (1 if depth else blank_lines):
            continue
        lines.append("    " * depth + words.rstrip(_OPEN) if words else "")
        if words.endswith(_OPEN):
            depth += 1
    return "\n".join(lines).strip("\n")
