"""The one place where exceptions of other libraries, and of what a bundle makes them do, become errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

from .errors import DFlashError, IncompatibleError

_LONGEST = 400


def is_fault(error: BaseException) -> bool:
    """Whether `error` says that something failed, and not that the program shall end.

    Libraries in Rust raise their panics as a class of their own that is no `Exception`, and name it nowhere.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def reason(error: BaseException) -> str:
    """What `error` says, in one line that is not too long."""
    said = shorten(str(error), _LONGEST, placeholder=" …")
    return said if isinstance(error, ValueError | OSError) and said else f"{type(error).__name__}: {said}".rstrip(": ")


@contextmanager
def foreign_errors(kind: type[DFlashError], what: str, *, where: str = "", fix: str = "") -> Iterator[None]:
    """Any fault of the block that is no `DFlashError` is raised as `kind`, with what the library said as the why.

    A library that is not there is `IncompatibleError`.
    """
    try:
        yield
    except DFlashError:
        raise
    except BaseException as fault:
        if not is_fault(fault):
            raise
        if isinstance(fault, ImportError):
            kind, fix = IncompatibleError, "install it; `dflash-compile doctor` says how"
        raise kind(what, where=where, why=reason(fault), fix=fix) from fault
