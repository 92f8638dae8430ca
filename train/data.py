"""Training batches from feature folders, and the held-out sequences beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from .blocks import BlockBatch, pack
from .features import Entry, FeatureStore
from .raw_text import TAG

Triple = tuple[torch.Tensor, torch.Tensor, int]


class Corpus:
    """Sequences of one or more feature stores, split once: every `held_out`-th response of a store is never trained
    on.
    """

    def __init__(self, stores: Iterable[FeatureStore], held_out: int) -> None:
        self.train: list[tuple[int, Entry]] = []
        self.test: list[tuple[int, Entry]] = []
        self._maps = []
        for index, store in enumerate(stores):
            self._maps.append(store.read())
            for place, entry in enumerate(store.entries):
                if entry.length - entry.prompt >= 3:  # an anchor needs a token after it
                    kept_apart = place % held_out == 0 and entry.tag != TAG
                    (self.test if kept_apart else self.train).append((index, entry))

    def triple(self, item: tuple[int, Entry]) -> Triple:
        """(tokens [t], features [t, width], prompt length) of one sequence, memory-mapped."""
        index, entry = item
        tokens, features = self._maps[index]
        rows = slice(entry.start, entry.start + entry.length)
        return tokens[rows], features[rows], entry.prompt

    def token_counts(self, responses_only: bool = False) -> Counter[int]:
        """How often each token of the training part was said after its prompt; with `responses_only`, plain text is
        left out.
        """
        counts: Counter[int] = Counter()
        for item in self.train:
            if not (responses_only and item[1].tag == TAG):
                tokens, _, prompt = self.triple(item)
                counts.update(tokens[prompt:].tolist())
        return counts

    def frequent_tokens(self, count: int) -> torch.Tensor:
        """Ids of the `count` most frequent response tokens of the training part, sorted, int64."""
        return torch.tensor(sorted(token for token, _ in self.token_counts().most_common(count)), dtype=torch.long)

    def batch(
        self, step: int, seed: int, sequences: int, anchors: int, block: int, narrow_share: float = 0.0
    ) -> BlockBatch:
        """The batch of `step`: the same for the same arguments, so that a resumed run continues the same stream.

        Sequences of similar length go together; padding would otherwise be half of the context work.
        """
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        pool = torch.randint(len(self.train), (sequences * 4,), generator=generator).tolist()
        pool = sorted(pool, key=lambda i: self.train[i][1].length)
        start = int(torch.randint(len(pool) - sequences + 1, (1,), generator=generator))
        triples = [self.triple(self.train[i]) for i in pool[start : start + sequences]]
        return pack(triples, anchors, block, generator, narrow_share)
