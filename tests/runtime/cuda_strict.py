"""cuda-core without a GPU: objects that have exactly the attributes of its classes and take exactly the arguments of
its functions.

A call is bound to the real function's signature and gives an object of the class that the signature says it returns.
"""

from __future__ import annotations

import ctypes
import inspect
from types import SimpleNamespace
from typing import Any


class Strict:
    """An instance of one of the library's classes, as far as its interface goes."""

    def __init__(self, library: Library, kind: type, **values: Any) -> None:
        self._library, self._kind, self._values = library, kind, values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        real = inspect.getattr_static(self._kind, name)  # AttributeError where the class has none
        if name in self._values:
            return self._values[name]
        if isinstance(real, (staticmethod, classmethod)) or callable(getattr(self._kind, name)):
            return self._library.function(
                getattr(self._kind, name), bound=not isinstance(real, (staticmethod, classmethod)), owner=self._kind
            )
        raise AssertionError(f"{self._kind.__name__}.{name} is read, and the test has no value for it")


class Library:
    """`cuda.core` with classes that construct `Strict` objects; `calls` are the functions that were called, in
    order.
    """

    def __init__(self, core: Any) -> None:
        self._core, self.calls = core, list[str]()
        self._memory: list[Any] = []
        self.kinds = {
            name: kind for module in (core, core.graph) for name, kind in vars(module).items() if isinstance(kind, type)
        }

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._core, name)
        if name == "LaunchConfig":
            return real  # it needs no device: its own checks are better
        if not isinstance(real, type):
            return self.function(real)
        statics = {
            key: self.function(getattr(real, key))
            for key, value in vars(real).items()
            if isinstance(value, (staticmethod, classmethod))
        }
        return type(
            name,
            (),
            {"__new__": lambda _, *__: self.make(name), **{key: staticmethod(value) for key, value in statics.items()}},
        )

    def make(self, name: str, size: int = 64) -> Strict:
        """An object of the class called `name`; a buffer has memory."""
        values: dict[str, Any] = {}
        if name == "Buffer":
            self._memory.append(ctypes.create_string_buffer(size))
            values["handle"] = ctypes.addressof(self._memory[-1])
        elif name == "Stream":
            values["handle"] = 7
        elif name == "GraphBuilder":
            values["stream"] = self.make("Stream")
        elif name == "GraphCondition":
            values["handle"] = 1 << 63
        elif name == "Device":
            values |= {"compute_capability": (8, 9), "name": "a card"}
        return Strict(self, self.kinds[name], **values)

    def function(self, real: Any, bound: bool = False, owner: type | None = None) -> Any:
        """`real`, which checks its arguments and gives what it says it gives."""
        signature = inspect.signature(real)

        def call(*arguments: Any, **options: Any) -> Any:
            found = signature.bind(*([object()] if bound else []), *arguments, **options).arguments
            self.calls.append(f"{owner.__name__}.{real.__name__}" if owner is not None else real.__name__)
            for name, value in found.items():
                self._check(real, name, value, signature.parameters[name].annotation)
            gives = str(signature.return_annotation).strip("'")
            return self.make(gives, int(found.get("size", 64))) if gives in self.kinds else None

        return call

    def _check(self, real: Any, name: str, value: Any, annotation: Any) -> None:
        """That one of the library's objects is given only where its class is asked for."""
        wanted = {word.strip() for word in str(annotation).strip("'").split("|")}
        if isinstance(value, Strict) and wanted & self.kinds.keys():
            assert value._kind.__name__ in wanted, (
                f"{real.__name__}({name}) takes {annotation}, not a {value._kind.__name__}"
            )


def strict_trt(trt: Any) -> Any:
    """A check of one of tensorrt's classes: attributes exist, and calls have as many arguments as an overload takes."""

    def of(kind: Any, **values: Any) -> Any:
        return _StrictTrt(kind, values)

    return SimpleNamespace(of=of, trt=trt)


class _StrictTrt:
    def __init__(self, kind: type, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_values", values)

    def __setattr__(self, name: str, value: Any) -> None:
        assert isinstance(inspect.getattr_static(self._kind, name), property), name

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._kind, name)
        given = self._values.get(name)
        if isinstance(real, property):
            return given
        overloads = [line for line in real.__doc__.splitlines() if f"{name}(self:" in line]
        counts = [_parameters(line) for line in overloads]
        assert counts, f"{name} does not say what it takes"

        def call(*arguments: Any) -> Any:
            assert any(least <= len(arguments) <= most for least, most in counts), (
                f"{name} takes {counts}, not {len(arguments)}"
            )
            return given(*arguments) if callable(given) else given

        return call


def _parameters(line: str) -> tuple[int, int]:
    """Fewest and most arguments after `self`, by a signature in words."""
    inside, depth, parts = line[line.index("(") + 1 : line.rindex(") ->")], 0, [""]
    for letter in inside:
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return sum("=" not in part for part in parts) - 1, len(parts) - 1
