"""What back-ends have a choice of: the part that all of them share of the options in their folders.

Importing an `options.py` takes no library: the command line makes its flags of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args, get_type_hints

from dflash_compile.runtime.errors import UsageError

from .backend_folders import backend_module, backend_names

if TYPE_CHECKING:
    from dflash_compile.export.tracing.graph import Owner
    from dflash_compile.runtime.bundle.manifest import Manifest

    from .options import BuildOptions
    from .pair_sizes import Models


@dataclass(frozen=True)
class Flag:
    """How the command line offers an option: what a field of options is annotated with."""

    help: str
    metavar: str | None = None
    choices: tuple[str | int, ...] = ()
    """every value there is; empty where that is not a matter of a list"""


@dataclass(frozen=True)
class Option:
    """An option of one back-end."""

    name: str
    type: Any
    """of its values, without None"""
    flag: Flag

    @property
    def spelling(self) -> str:
        """As the command line takes it."""
        return spelling(self.name)


@dataclass(frozen=True)
class BackendOptions:
    """Options of one build for one back-end. A field of a subclass is an option, annotated with its `Flag`.

    Raises `UsageError` for what these engines cannot have.
    """

    TITLE: ClassVar[str]
    """of the back-end, for people"""
    PRECISIONS: ClassVar[tuple[str, ...]]
    """names that `--precision` takes, the default first"""

    precision: str
    """of the target's weights"""
    drafter_precision: str

    @classmethod
    def options(cls) -> Mapping[str, Option]:
        """By name, in order."""
        hints = get_type_hints(cls, include_extras=True)
        flags = {name: (kind, getattr(kind, "__metadata__", ())) for name, kind in hints.items()}
        return {name: Option(name, _given(kind), flag[0]) for name, (kind, flag) in flags.items() if flag}

    @classmethod
    def parse(cls, asked: BuildOptions) -> Self:
        """What `asked` says of this back-end. Raises `UsageError` for what it does not know."""
        known, given = cls.options(), {name: value for name, value in asked.engine.items() if value is not None}
        for name, value in given.items():
            if name not in known:
                raise _unknown(name, asked.backend, known)
            if (choices := known[name].flag.choices) and value not in choices:
                raise UsageError(
                    f"{name.replace('_', ' ')} {value!r}",
                    where=known[name].spelling,
                    fix=f"choose one of {', '.join(map(str, choices))}",
                )
        precision = asked.precision or cls.PRECISIONS[0]
        drafter = asked.drafter_precision or precision
        for option, chosen in (("precision", precision), ("drafter_precision", drafter)):
            if chosen not in cls.PRECISIONS:
                raise UsageError(
                    f"unknown precision {chosen!r}",
                    where=spelling(option),
                    why=f"the back-end is {asked.backend}",
                    fix=f"choose one of {', '.join(cls.PRECISIONS)}",
                )
        return cls(precision, drafter, **given)

    def for_models(self, models: Models) -> Self:
        """The same with what depends on the models decided. Raises `UsageError` for what these cannot have."""
        return self

    def precision_for(self, owner: Owner) -> str:
        """The name of the precision of one model's engines."""
        return self.drafter_precision if owner == "drafter" else self.precision

    def config(self) -> Mapping[str, str | int]:
        """What the manifest records of these options, in order."""
        return {}

    def differences(self, manifest: Manifest) -> Mapping[str, tuple[object, object]]:
        """What decides about the target's engines, there and here, by what it is called."""
        return {}


def spelling(name: str) -> str:
    """An option as the command line takes it."""
    return f"--{name.replace('_', '-')}"


def _given(kind: Any) -> Any:
    """`Annotated[int | None, …]` as `int`."""
    plain = get_args(kind)[0] if get_args(kind) else kind
    choices = [choice for choice in get_args(plain) if choice is not type(None)]
    return choices[0] if type(None) in get_args(plain) else plain


def _unknown(name: str, backend: str, known: Mapping[str, Option]) -> UsageError:
    """The error of an option that this back-end does not have; another one may."""
    others = [
        other
        for other in backend_names("options")
        if name in backend_module(other, "options", "options").Options.options()
    ]
    close = difflib.get_close_matches(name, known, n=1)
    return UsageError(
        f"{spelling(name)} for {backend}",
        where=spelling(name),
        why=f"that back-end has {', '.join(option.spelling for option in known.values()) or 'no options of its own'}",
        fix=(
            f"leave it out, or build with --backend {' or '.join(others)}"
            if others
            else f"did you mean {known[close[0]].spelling}, here {close[0]!r}?"
            if close
            else "leave it out"
        ),
    )
