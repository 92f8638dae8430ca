"""Stop strings in a stream of text: what may be shown now, and whether the end has come."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from .errors import UsageError


class StopFilter:
    """Passes text on, but never any part of a stop string.

    Text that could still become a stop string is held back. Of several, the one completed first ends the text; the
    result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(isinstance(stop, str) for stop in stops):
            raise UsageError("a stop string is not text", why=repr(stops), fix="give a string, or several in a list")
        if any(not stop for stop in stops):
            raise UsageError(
                "a stop string is empty", why="it would match before the first character", fix="leave it out"
            )
        self._stops = tuple(stops)
        self._held = ""
        self._shown: list[bool] = []  # for every character that is held
        self.stopped = False

    def feed(self, piece: str, *, hidden: bool = False) -> str:
        """The text that is safe to show after `piece`; sets `stopped` where a stop string is complete, and drops it and
        all that follows.

        A `hidden` piece, of a special token, can be part of a stop string and is never shown.
        """
        if not self._stops:
            return "" if hidden else piece
        self._held += piece
        self._shown += [not hidden] * len(piece)
        found = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text = self._take(min(found)[1])
            self._held, self._shown = "", []
            return text
        return self._take(len(self._held) - self._undecided(self._held))

    def flush(self) -> str:
        """What was held back, once no more text can complete it."""
        return self._take(len(self._held))

    def _take(self, size: int) -> str:
        """The first `size` characters that are held, without the hidden ones; they are no longer held."""
        text = "".join(compress(self._held[:size], self._shown[:size]))
        self._held, self._shown = self._held[size:], self._shown[size:]
        return text

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next(
            (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in self._stops)), 0
        )
