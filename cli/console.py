"""Where words go: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TextIO

from dflash_compile.runtime.errors import DFlashError

from . import interrupts
from .progress import ProgressDisplay, show_progress
from .report import Report, schema


@dataclass
class Console:
    """One run's output. Colour and bars appear on a terminal only, and colour not under NO_COLOR."""

    json: bool = False
    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)

    def note(self, text: str) -> None:
        """Something worth knowing while the command runs."""
        if not self.quiet:
            self._print(self.err, text)

    def detail(self, text: str) -> None:
        """Something for --verbose."""
        if self.verbose:
            self._print(self.err, text)

    def stream(self, text: str) -> None:
        """A piece of the result, at once, as it is; nothing with --json, where the whole comes at the end."""
        if not self.json:
            self.out.write(text)
            self.out.flush()

    @contextlib.contextmanager
    def progress(self) -> Iterator[ProgressDisplay]:
        """A callback `(step, done, total, detail)` that draws a bar, or plain lines where there is no terminal."""
        with show_progress(self.err) if not self.quiet else contextlib.nullcontext(_unseen) as show:

            def report(step: str, done: float = 0, total: float = 0, detail: str = "") -> None:
                interrupts.check()
                show(step, done, total, detail)

            yield report

    def report(self, name: str, report: Report) -> None:
        """Print what the command `name` found."""
        if self.json:
            self._document(name, report.document)
        else:
            for part in report.text:
                self._print(self.out, part)

    def failure(self, error: DFlashError, cause: BaseException | None = None) -> int:
        """Print `error`, with the traceback of `cause` under --debug, and return its exit code."""
        with contextlib.suppress(
            OSError
        ):  # where even this cannot be written, the exit code is all that is left to say
            trace = "".join(traceback.format_exception(cause)) if self.debug and cause is not None else ""
            document = error.as_dict() | ({"traceback": trace} if trace else {})
            if not self.json and trace:
                self.err.write(trace)
            if not self.json or not self._document_if_possible("error", document):
                self.err.write(f"error: {error}\n")
        return int(error.exit_code)

    @contextlib.contextmanager
    def without_chatter(self) -> Iterator[None]:
        """Keep libraries from the result and from the user: what they print goes to standard error, what they log or
        warn of needs --verbose.
        """
        before = logging.root.manager.disable
        with contextlib.redirect_stdout(self.err), warnings.catch_warnings():
            if not self.verbose:
                warnings.simplefilter("ignore")
                logging.disable(logging.WARNING)
            try:
                yield
            finally:
                logging.disable(before)

    def discard_output(self) -> None:
        """Let standard output lead nowhere: what it still holds would fail again when the program ends."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _document(self, kind: str, content: Mapping[str, object]) -> None:
        document = {"schema": schema(kind), **content}
        # Whole before the first character goes out: a value that is no JSON must not leave half a document behind.
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        try:
            text.encode(self.out.encoding or "utf-8")
        except UnicodeEncodeError:
            text = json.dumps(document, allow_nan=False)
        self.out.write(f"{text}\n")
        self.out.flush()

    def _document_if_possible(self, kind: str, content: Mapping[str, object]) -> bool:
        try:
            self._document(kind, content)
        except OSError:
            self.discard_output()
            return False
        return True

    def _print(self, stream: TextIO, part: Any) -> None:
        if isinstance(part, str):
            stream.write(f"{part}\n")
            stream.flush()
            return
        from rich.console import Console as Rich  # takes longer to import than most commands take to answer

        Rich(file=stream, highlight=False).print(part)


def _unseen(step: str, done: float = 0, total: float = 0, detail: str = "") -> None:
    """Progress that nobody wants to see."""
