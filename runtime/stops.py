"""Stop strings in a stream of text: what may be shown now, and whether the end has come."""

from __future__ import annotations

from collections.abc import Sequence

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
        self.stopped = False

    def feed(self, piece: str) -> str:
        """The text that is safe to show after `piece`; sets `stopped` where a stop string is complete, and drops it and
        all that follows.
        """
        if not self._stops:
            return piece
        text = self._held + piece
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)[1]]
        safe = len(text) - self._undecided(text)
        self._held = text[safe:]
        return text[:safe]

    def flush(self) -> str:
        """What was held back, once no more text can complete it."""
        held, self._held = self._held, ""
        return held

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(max(map(len, self._stops)) - 1, len(text))
        return next(
            (size for size in range(longest, 0, -1) if any(stop.startswith(text[-size:]) for stop in self._stops)), 0
        )
