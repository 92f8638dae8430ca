"""Guesses without a model: the text goes on as it did the last time it read like this.

An index of every run of up to three tokens and of what came after it, over prompt and answer (Saxena, "Prompt Lookup
Decoding", 2023). It grows with the answer and is never searched: a token costs three dictionary entries, whatever the
length of the text.
"""

from __future__ import annotations

from collections.abc import Iterable

# Measured on the prompt suites: longer runs find nothing better, and leaving out the shortest loses a fifth of what is
# found.
_LENGTHS = (3, 2, 1)
_BITS = 32
_MASKS = tuple((1 << _BITS * length) - 1 for length in _LENGTHS)
LONGEST = 8
"""tokens: a match is not measured beyond them"""


class PromptLookup:
    """The text of one request, prompt and answer, and where to read on."""

    def __init__(self, most: int) -> None:
        self.most = most
        """tokens of a guess"""
        self._tokens: list[int] = []
        self._after: tuple[dict[int, int], ...] = tuple({} for _ in _LENGTHS)
        self._recent = 0
        """the last tokens as one number"""
        self._source: int | None = None
        """where the text went on after the longest run that it ends in now"""

    def extend(self, tokens: Iterable[int]) -> None:
        """Append `tokens` to the text."""
        for token in tokens:
            self._tokens.append(token)
            # One more than the id: zero is where the text has not begun.
            self._recent = (self._recent << _BITS | token + 1) & _MASKS[0]
            self._source, following = None, len(self._tokens)
            for after, mask in zip(self._after, _MASKS, strict=True):
                run = self._recent & mask
                if self._source is None:
                    self._source = after.get(run)
                after[run] = following

    def match(self) -> int:
        """How many tokens at the end of the text, up to `LONGEST`, also precede the guess: 0 where there is
        none.
        """
        if self._source is None:
            return 0
        tokens, length = self._tokens, 0
        for earlier, last in zip(range(self._source - 1, -1, -1), range(len(tokens) - 1, -1, -1), strict=False):
            if length == LONGEST or tokens[earlier] != tokens[last]:
                break
            length += 1
        return length

    def guess(self) -> list[int]:
        """The next `most` tokens, if the text repeats itself from the match on; none without one."""
        if self._source is None:
            return []
        known = self._tokens[self._source : self._source + self.most]
        # A match that ends where the text does is a period, and goes on into itself.
        return [known[slot % len(known)] for slot in range(self.most)]
