"""The optimisation loop: batches in, a better drafter out, with a checkpoint it can resume from."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional as F

from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.runtime.errors import UsageError

from .blocks import IGNORED, BlockBatch, gamma_for, row_weights
from .compute import Compute, choose_compute
from .data import Corpus
from .draft_forward import draft_hidden
from .evaluate import Acceptance, evaluate
from .options import TrainOptions
from .state import Clock, load_state, save_state
from .teacher import Teacher


@dataclass(frozen=True)
class TrainEvent:
    """One step done. `acceptance` is set when the held-out sequences were just walked."""

    done: float
    """share of the run, 0 to 1"""
    clock: Clock
    loss: float
    learning_rate: float
    acceptance: Acceptance | None = None


def rate_at(done: float, options: TrainOptions) -> float:
    """Learning rate at a share of the run: linear warm-up, then a cosine down to zero."""
    if done < options.warm_up:
        return options.learning_rate * (done / options.warm_up)
    rest = (done - options.warm_up) / (1 - options.warm_up)
    return options.learning_rate * 0.5 * (1 + math.cos(math.pi * min(rest, 1.0)))


class Vocabulary:
    """The token ids a loss is normalised over, and the head's rows for them."""

    def __init__(self, head: torch.Tensor, ids: torch.Tensor | None) -> None:
        """`head` [V, H]; `ids` sorted int64, or None for all."""
        self.head = head if ids is None else head[ids]
        self.index = torch.arange(len(head), device=head.device)
        if ids is not None:
            self.index = torch.full((len(head),), IGNORED, device=head.device)
            self.index[ids] = torch.arange(len(ids), device=head.device)

    def labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Labels as rows of `head`; those outside become `IGNORED`."""
        return torch.where(labels == IGNORED, IGNORED, self.index[labels.clamp(min=0)])


def block_loss(
    model: DflashV1,
    batch: BlockBatch,
    embedding: torch.Tensor,
    vocabulary: Vocabulary,
    gamma: float,
    teacher: Teacher | None = None,
    soft_share: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Cross-entropy of every labelled row, weighted exp(-(k - 1) / gamma) and divided by the weights' sum; 0 where no
    label is in `vocabulary`.

    With a `teacher`, `soft_share` of it is against the target's distribution over the same vocabulary. `dtype` is the
    one that autocast, where it is on, computes in.
    """
    block = batch.labels.shape[-1] + 1
    hidden = draft_hidden(model, batch, embedding, block, dtype)
    labels = vocabulary.labels(batch.labels)
    kept = labels != IGNORED
    logits = (hidden[kept] @ vocabulary.head.T).float()
    weights = row_weights(block, gamma).to(logits.device).expand(labels.shape)[kept]
    if teacher is None or soft_share == 0:
        losses = F.cross_entropy(logits, labels[kept], reduction="none")
    else:  # one cross-entropy against the mixture is that of both
        rows, which = teacher.rows(batch, kept)
        wanted = (rows @ vocabulary.head.T).float().softmax(-1)[which].mul_(soft_share)
        wanted[torch.arange(len(wanted), device=wanted.device), labels[kept]] += 1 - soft_share
        losses = F.cross_entropy(logits, wanted, reduction="none")
    # A batch without a row to learn from must not move the weights: 0 / 0 would make all of them NaN.
    return (losses * weights).sum() / weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)


class Trainer:
    """Trains `model` against a frozen embedding and head."""

    def __init__(
        self,
        model: DflashV1,
        embedding: torch.Tensor,
        head: torch.Tensor,
        corpus: Corpus,
        options: TrainOptions,
        state: Path,
        teacher: Teacher | None = None,
        start: str = "target",
        compute: Compute | None = None,
        draft_ids: torch.Tensor | None = None,
    ) -> None:
        """`embedding`, `head` [V, H] float32 on the model's device; `state` is the checkpoint file, resumed from when
        it exists.

        Without a `teacher` the loss knows only the tokens that were said. `start` names the weights `model` comes with:
        a state that began with others is refused. `compute` by default follows `options.precision` on the embedding's
        device. `draft_ids` int64, sorted, are the only tokens that can be proposed, where those are not all.
        """
        self.start = start
        self.model, self.corpus, self.options, self.state, self.teacher = model, corpus, options, state, teacher
        self.compute = compute or choose_compute(options.precision, embedding.device)
        self.device = self.compute.device
        self.embedding, self.head = embedding, head
        decay, fused = options.weight_decay, self.device.type == "cpu"  # elsewhere torch groups the updates by itself
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=options.learning_rate, weight_decay=decay, betas=(0.9, 0.95), fused=fused or None
        )
        self.clock = load_state(state, model, self.optimiser, start) if state.exists() else Clock()
        self.low_head = head.to(self.compute.dtype)
        self.whole = Vocabulary(self.low_head, None if draft_ids is None else draft_ids.to(self.device))
        # What cannot be proposed is no part of the loss.
        self.frequent = (
            self.whole
            if draft_ids is not None
            else Vocabulary(self.low_head, corpus.frequent_tokens(options.loss_vocabulary).to(self.device))
        )
        self.held_out = [corpus.triple(item) for item in corpus.test[:48]]
        if not self.held_out:
            raise UsageError(
                "no sequence is left to measure τ on",
                where="--held-out",
                fix="ask for more --response-tokens, or lower --held-out",
            )

    @property
    def done(self) -> float:
        """Share of the run that is behind, by the clock where minutes were asked for, else by steps."""
        if self.options.minutes is not None:
            return min(1.0, self.clock.seconds / (60 * self.options.minutes))
        return min(1.0, self.clock.step / self.options.steps)

    def train_step(self) -> float:
        """Train on the batch of the clock's step; its loss. The caller moves the clock."""
        options = self.options
        batch = self.corpus.batch(
            self.clock.step, options.seed, options.sequences, options.anchors, options.block, options.narrow_share
        )
        batch = batch.to(self.device)
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(self.done, options)
        vocabulary = self.whole if self.done > 1 - options.full_share else self.frequent
        gamma, dtype = gamma_for(options.block) if options.gamma is None else options.gamma, self.compute.dtype
        with self.compute.autocast():
            loss = block_loss(
                self.model, batch, self.embedding, vocabulary, gamma, self.teacher, options.soft_share, dtype
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.clock.rows += int((batch.labels != IGNORED).sum())
        return float(loss.detach())

    def acceptance(self) -> Acceptance:
        """τ and acceptance by position on the held-out sequences."""
        return evaluate(
            self.model,
            self.embedding,
            self.whole.head,
            self.held_out,
            self.options.block,
            self.compute.dtype,
            self.whole.labels,
        )

    def run(self, on_event: Callable[[TrainEvent], None] = lambda event: None) -> None:
        """Train to the end of the schedule. Interrupting loses at most `checkpoint_seconds` of work."""
        self.model.train()
        saved = time.monotonic()
        try:
            while self.done < 1:
                start = time.monotonic()
                loss = self.train_step()
                self.clock.step += 1
                self.clock.seconds += time.monotonic() - start
                due = self.clock.step % self.options.evaluate_every == 0 or self.done >= 1
                acceptance = self.acceptance() if due else None
                on_event(TrainEvent(self.done, replace(self.clock), loss, rate_at(self.done, self.options), acceptance))
                if time.monotonic() - saved > self.options.checkpoint_seconds:
                    save_state(self.state, self.model, self.optimiser, self.clock, self.start)
                    saved = time.monotonic()
        finally:
            save_state(self.state, self.model, self.optimiser, self.clock, self.start)
