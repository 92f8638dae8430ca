"""The tokens a drafter with a reduced output head can propose: row i of the head stands for target token `ids[i]`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import CheckpointError

if TYPE_CHECKING:
    import torch

SHOWN = 4
DELTAS, MEMBERS = "d2t", "t2d"
"""tensors of the speculators layout: int64 [draft_vocab], target id - row; bool [vocab], whether a token can be
proposed"""


@dataclass(frozen=True)
class DraftVocabulary:
    """Target token ids in the order of the head's rows."""

    ids: tuple[int, ...]
    vocab: int
    """of the target"""

    def __post_init__(self) -> None:
        """Raises `ValueError` for ids that are no tokens of the target, that repeat, or that are all of its tokens."""
        outside = [token for token in self.ids if not 0 <= token < self.vocab]
        if outside:
            raise ValueError(
                f"{len(outside)} ids are outside the target's vocabulary of {self.vocab}: {_first(outside)}"
            )
        if len(set(self.ids)) != len(self.ids):
            twice = [token for token, times in Counter(self.ids).items() if times > 1]
            raise ValueError(f"ids occur twice: {_first(twice)}")
        if not 1 <= len(self.ids) < self.vocab:
            raise ValueError(
                f"a reduced vocabulary has 1 to {self.vocab - 1} of the target's {self.vocab} tokens, not"
                f" {len(self.ids)}"
            )

    def tensors(self) -> dict[str, torch.Tensor]:
        """`DELTAS` int64 [draft_vocab] and `MEMBERS` bool [vocab]."""
        import torch

        ids = torch.tensor(self.ids, dtype=torch.int64)
        members = torch.zeros(self.vocab, dtype=torch.bool)
        members[ids] = True
        return {DELTAS: ids - torch.arange(len(ids)), MEMBERS: members}


def vocabulary_of(deltas: torch.Tensor, members: torch.Tensor, where: str) -> DraftVocabulary:
    """The vocabulary that `DELTAS` int64 [draft_vocab] and `MEMBERS` bool [vocab] describe.

    Raises `CheckpointError` when the ids are no vocabulary of the target, or when the two name different tokens.
    """
    import torch

    ids = deltas + torch.arange(len(deltas))
    try:
        vocabulary = DraftVocabulary(tuple(ids.tolist()), len(members))
    except ValueError as error:
        raise CheckpointError(
            f"{DELTAS} is no map into the target's vocabulary",
            where=where,
            why=f"{error} (target id = row + {DELTAS}[row])",
            fix="copy or download the drafter again, or have its maps written anew",
        ) from None
    differ = vocabulary.tensors()[MEMBERS].logical_xor(members).nonzero().flatten().tolist()
    if differ:
        raise CheckpointError(
            f"{MEMBERS} and {DELTAS} name different tokens",
            where=where,
            why=f"they differ on {len(differ)} tokens: {_first(differ)}",
            fix="copy or download the drafter again: the two are written together",
        )
    return vocabulary


def _first(ids: Iterable[int]) -> str:
    listed = list(ids)
    return ", ".join(map(str, listed[:SHOWN])) + (", …" if len(listed) > SHOWN else "")
