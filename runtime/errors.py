"""The one error type of the project: what is wrong, where, why, and what to do next.

Lives in `runtime/` because every other package may import it, and it imports nothing.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line, one per kind of failure."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    INCOMPATIBLE = 3
    BUILD_FAILED = 4
    INTERRUPTED = 130


class DFlashError(Exception):
    """A failure a user can act on.

    `what` went wrong, `where` (a file, a key, a tensor), `why` it matters, and `fix`: the next thing to do.
    """

    exit_code: ExitCode = ExitCode.BUILD_FAILED

    def __init__(self, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        self.what, self.where, self.why, self.fix = what, where, why, fix
        super().__init__(what)

    def __str__(self) -> str:
        parts = [
            self.what,
            self.where and f"  where: {self.where}",
            self.why and f"  why: {self.why}",
            self.fix and f"  fix: {self.fix}",
        ]
        return "\n".join(part for part in parts if part)

    def as_dict(self) -> dict[str, object]:
        """The error as a JSON-ready document."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "why": self.why,
            "fix": self.fix,
            "exit_code": int(self.exit_code),
        }


class UsageError(DFlashError):
    """The command or call itself is wrong: a bad option, a missing path."""

    exit_code = ExitCode.USAGE


class CheckpointError(DFlashError):
    """A checkpoint cannot be read: truncated, incomplete, of an unknown layout."""


class PairingError(DFlashError):
    """Target and drafter do not belong together, or one of them breaks the contract."""

    exit_code = ExitCode.INCOMPATIBLE


class BuildError(DFlashError):
    """Tracing, lowering, binding or writing failed."""


class BundleError(DFlashError):
    """A bundle is damaged or incomplete: missing file, wrong hash, bad manifest."""

    exit_code = ExitCode.CHECK_FAILED


class IncompatibleError(DFlashError):
    """The bundle is whole, but not for this machine or these library versions."""

    exit_code = ExitCode.INCOMPATIBLE


class LengthError(DFlashError):
    """The prompt, or prompt and answer, do not fit the bundle's cache."""

    exit_code = ExitCode.USAGE
