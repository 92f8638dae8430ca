"""The reduced draft vocabulary of a training run: which tokens it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dflash_compile.export.dflash.vocabulary import DraftVocabulary
from dflash_compile.export.spec import TargetSpec
from dflash_compile.runtime.errors import UsageError


def check_size(size: int, target: TargetSpec) -> None:
    """Raise `UsageError` when `size` tokens leave none beside those that end an answer, or are not fewer than the
    target's.
    """
    ends = len(set(target.eos_ids))
    if not ends < size < target.vocab:
        raise UsageError(
            f"a draft vocabulary of {size} tokens",
            where="--draft-vocabulary",
            why=(
                f"{target.name} has {target.vocab} tokens, and the {ends} that end an answer are always among those"
                " that can be proposed"
            ),
            fix=f"ask for {ends + 1} to {target.vocab - 1}, or leave the option out for all tokens",
        )


def choose_vocabulary(counts: Counter[int], size: int, target: TargetSpec, mask_id: int) -> DraftVocabulary:
    """The tokens that end an answer and the most frequent of `counts`, `size` in all, sorted by id; never the mask.

    Among tokens that occur equally often, those that never occur included, the lower ids come first. Raises
    `UsageError` as `check_size` does.
    """
    check_size(size, target)
    ends = sorted(set(target.eos_ids))
    others = set(range(target.vocab)) - {*ends, mask_id}
    frequent = sorted(others, key=lambda token: (-counts[token], token))
    return DraftVocabulary(tuple(sorted([*ends, *frequent[: size - len(ends)]])), target.vocab)


def coverage(counts: Counter[int], ids: Iterable[int]) -> float:
    """Share of counted tokens that are among `ids`; 0 where nothing was counted."""
    total = counts.total()
    return sum(counts[token] for token in ids) / total if total else 0.0
