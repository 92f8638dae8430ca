"""τ of a drafter on stored greedy sequences, without running the target.

A greedy sequence is what the target will say, so the draft-verify cycle can be walked on it: propose at an anchor,
count the leading proposals that equal the sequence, move on by one more. τ = tokens per cycle (accepted + 1), as the
loop counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from dflash_compile.export.dflash.v1 import DflashV1

from .blocks import IGNORED, BlockBatch, block_labels
from .draft_forward import draft_hidden


@dataclass(frozen=True)
class Acceptance:
    """Outcome over all sequences."""

    tokens: int
    cycles: int
    reached: tuple[int, ...]
    """cycles in which at least k proposals were accepted, for k = 1 .. block - 1"""

    @property
    def tau(self) -> float:
        """Mean tokens per cycle."""
        return self.tokens / self.cycles if self.cycles else 0.0

    @property
    def by_position(self) -> tuple[float, ...]:
        """Share of cycles whose k-th proposal was accepted, k = 1 .. block - 1."""
        return tuple(r / self.cycles if self.cycles else 0.0 for r in self.reached)


@torch.no_grad()
def matches(
    model: DflashV1,
    embedding: torch.Tensor,
    head: torch.Tensor,
    tokens: torch.Tensor,
    features: torch.Tensor,
    prompt: int,
    block: int,
    dtype: torch.dtype,
    relabel: Callable[[torch.Tensor], torch.Tensor] = lambda labels: labels,
) -> torch.Tensor:
    """Accepted proposals at every possible anchor of one sequence, int64 [length - 1 - prompt].

    `dtype` is what the drafter computes in: bfloat16 by autocast, or float32. Tensors may lie on any one device.
    `relabel` turns tokens into rows of `head`, or into `IGNORED` where there is none.
    """
    device = embedding.device
    anchors = torch.arange(prompt, len(tokens) - 1)
    labels = block_labels(tokens, anchors, block)
    accepted = []
    for part in range(0, len(anchors), 64):
        some = anchors[part : part + 64]
        wanted = relabel(labels[part : part + 64].to(device))
        parts = (features[None, : int(some[-1])], some[None], tokens.long()[some][None])
        context, places, anchor_tokens = (t.to(device) for t in parts)
        batch = BlockBatch(context, places, anchor_tokens, wanted[None])
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden = draft_hidden(model, batch, embedding, block, dtype)[0]
            accepted.append(_leading_matches(hidden, head, wanted).cpu())
    return torch.cat(accepted) if accepted else torch.empty(0, dtype=torch.long)


def _leading_matches(hidden: torch.Tensor, head: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """How many leading proposals of each block are `wanted` [A, B - 1], int64 [A].

    The head is most of the work, and most proposals are behind a wrong one: a column is scored only where all before it
    stand.
    """
    counts = torch.zeros(len(hidden), dtype=torch.long, device=hidden.device)
    standing = torch.arange(len(hidden), device=hidden.device)
    for k in range(wanted.shape[1]):
        labels = wanted[standing, k]
        right = ((hidden[standing, k] @ head.T).argmax(-1) == labels) & (labels != IGNORED)
        standing = standing[right]
        if not len(standing):
            break
        counts[standing] += 1
    return counts


def walk(accepted: torch.Tensor, block: int) -> Acceptance:
    """Walk one sequence: `accepted[i]` proposals match at anchor i; each cycle moves on by accepted + 1."""
    counts = accepted.tolist()
    reached = [0] * (block - 1)
    place = cycles = 0
    while place < len(counts):
        for k in range(counts[place]):
            reached[k] += 1
        place += counts[place] + 1
        cycles += 1
    return Acceptance(place, cycles, tuple(reached))


def evaluate(
    model: DflashV1,
    embedding: torch.Tensor,
    head: torch.Tensor,
    sequences: Iterable[tuple[torch.Tensor, torch.Tensor, int]],
    block: int,
    dtype: torch.dtype,
    relabel: Callable[[torch.Tensor], torch.Tensor] = lambda labels: labels,
) -> Acceptance:
    """Acceptance over (tokens, features, prompt length) triples.

    `head` [V, H] is the target's output head, or some of its rows, in `dtype`: see `matches`.
    """
    was_training = model.training
    model.eval()
    walks = [walk(matches(model, embedding, head, t, f, p, block, dtype, relabel), block) for t, f, p in sequences]
    model.train(was_training)
    reached = tuple(sum(column) for column in zip(*(w.reached for w in walks), strict=True))
    return Acceptance(sum(w.tokens for w in walks), sum(w.cycles for w in walks), reached)
