"""Token ids to text as they come: whole characters, and what special tokens stand for where that is asked for."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

from tokenizers import Tokenizer

from .errors import BundleError
from .foreign import foreign_errors
from .stops import StopFilter

TOKENIZER_FIX = "build the bundle again, from a checkpoint whose tokenizer.json is whole"
_INCOMPLETE = "\ufffd"
"""what a decoder writes for bytes that are no character, or none yet"""


class Detokenizer:
    """Ids one at a time to text, whole characters only.

    Bytes that never become a character are shown as U+FFFD once a character follows them. The ids of the last piece
    are decoded again with every new one: decoders join, strip and space tokens by what stands before them.
    """

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool = False) -> None:
        """With `special_tokens`, what those stand for is text as well; else it is left out."""
        self._tokenizer, self._skip = tokenizer, not special_tokens
        self._ids: list[int] = []
        self._read = 0  # of them, whose text was given
        self._given = ""  # text of those ids, as the decoder writes them alone

    def feed(self, token: int) -> str:
        """The text that `token` completes: empty while a character is still missing bytes.

        An answer that ends inside a character ends before it: nothing is owed at the end. Raises `BundleError` where
        the tokenizer fails.
        """
        self._ids.append(token)
        with foreign_errors(
            BundleError,
            f"the tokenizer cannot write the token {token}",
            fix=TOKENIZER_FIX,
        ):
            text = self._decoded(self._ids)
            if text == self._given or text.endswith(_INCOMPLETE):
                return ""
            # Bytes behind a run of bytes may turn all of it into U+FFFD: what was given stays given.
            whole = text.startswith(self._given)
            piece = text[len(self._given) :] if whole else self._decoded(self._ids[self._read :])
            self._ids = self._ids[self._read :]
            self._read, self._given = len(self._ids), self._decoded(self._ids)
        return piece

    def _decoded(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=self._skip))


class AnswerText:
    """The text of one answer up to its stop string, which may be, or hold, special tokens that are not shown."""

    def __init__(
        self, tokenizer: Tokenizer, stops: StopFilter, end_ids: Collection[int], *, special_tokens: bool
    ) -> None:
        """`end_ids` end the answer and are shown only with `special_tokens`, which shows all of those."""
        self._tokenizer, self._stops, self._shows = tokenizer, stops, special_tokens
        self._end_ids = frozenset(end_ids)
        self._stream = Detokenizer(tokenizer, special_tokens=special_tokens)

    def feed(self, token: int) -> str:
        """The text that is safe to show once `token` is known."""
        if not self._shows and token in self._end_ids:
            return ""
        if not self._shows and token in self._hidden:
            return self._stops.feed(self._hidden[token], hidden=True)
        return self._stops.feed(self._stream.feed(token))

    def flush(self) -> str:
        """What was held back, once no more text can complete a stop string."""
        return self._stops.flush()

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stops.stopped

    @cached_property
    def _hidden(self) -> dict[int, str]:
        """What the special tokens are called."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token: entry.content for token, entry in added.items() if entry.special}
