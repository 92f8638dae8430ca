"""Batched generation with the torch target that keeps the tap features of every token.

Continuous batching: each slot holds one sequence; a finished slot takes the next request, so
short answers do not leave the batch half empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from .request import Request, Sequence
from .slot_cache import ATTENTION, SlotCache

SAMPLE_TOP_K = 50


@dataclass
class _Slot:
    request: Request
    tokens: list[int]
    features: list[torch.Tensor] = field(default_factory=list)


class BatchedGenerator:
    """Generates for many requests at once and hands back tokens with their tap features."""

    def __init__(
        self,
        model: PreTrainedModel,
        taps: tuple[int, ...],
        stop_ids: frozenset[int],
        slots: int = 64,
        length: int = 640,
        seed: int = 0,
    ) -> None:
        self.model, self.taps, self.stop_ids, self.length = model.eval(), taps, stop_ids, length
        model.set_attn_implementation(ATTENTION)
        self.device = next(model.parameters()).device
        self.cache = SlotCache(model.config, slots, length, model.dtype, self.device)
        self.slots: list[_Slot | None] = [None] * slots
        self.random = torch.Generator(device=self.device).manual_seed(seed)
        self.passed_over = 0
        """requests that did not fit a slot"""

    def fits(self, request: Request) -> bool:
        """Whether prompt and answer have room in a slot."""
        return 0 < len(request.prompt) <= self.length - request.limit

    @torch.inference_mode()
    def run(self, requests: Iterator[Request], on_finish: Callable[[Sequence], None]) -> None:
        """Serve `requests` until the iterator ends; `on_finish` gets each sequence as it completes."""
        open_ended = True
        while True:
            for i in range(len(self.slots)):
                while open_ended and self.slots[i] is None:
                    request = next(requests, None)
                    if request is None:
                        open_ended = False
                    elif self._admit(i, request):
                        break
            if not any(self.slots):
                return
            self._step(on_finish)

    def _forward(
        self, rows: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden of the last row [n, H], taps [n, S, taps * H]) for `tokens` [n, S]."""
        self.cache.aim(rows, positions)
        out = self.model.model(
            input_ids=tokens,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            output_hidden_states=True,
            slot_cache=self.cache,
        )
        taps = torch.cat([out.hidden_states[layer + 1] for layer in self.taps], dim=-1)
        return out.last_hidden_state[:, -1], taps

    def _admit(self, index: int, request: Request) -> bool:
        """Prefill `request` into slot `index`; False when it cannot fit."""
        if not self.fits(request):
            self.passed_over += 1
            return False
        tokens = torch.tensor([request.prompt], device=self.device)
        positions = torch.arange(tokens.shape[1], device=self.device)[None]
        hidden, taps = self._forward(torch.tensor([index], device=self.device), tokens, positions)
        slot = _Slot(request, list(request.prompt), [taps[0].clone()])
        slot.tokens.append(int(self._choose(hidden, [request.temperature])[0]))
        self.slots[index] = slot
        return True

    def _choose(self, hidden: torch.Tensor, temperatures: list[float]) -> torch.Tensor:
        logits = self.model.lm_head(hidden).float()
        tokens: torch.Tensor = logits.argmax(-1)
        warm = torch.tensor(temperatures, device=self.device)
        hot = warm.nonzero()[:, 0]
        if len(hot):
            best, ids = logits[hot].topk(SAMPLE_TOP_K)  # noise over the whole vocabulary costs more than the model
            noise = torch.empty_like(best).exponential_(generator=self.random)
            pick = (torch.softmax(best / warm[hot, None], -1) / noise).argmax(-1, keepdim=True)
            tokens[hot] = ids.gather(-1, pick)[:, 0]
        return tokens

    def _step(self, on_finish: Callable[[Sequence], None]) -> None:
        self._retire(on_finish)
        busy = [(i, slot) for i, slot in enumerate(self.slots) if slot]
        if not busy:
            return
        rows = torch.tensor([i for i, _ in busy], device=self.device)
        tokens = torch.tensor([[slot.tokens[-1]] for _, slot in busy], device=self.device)
        positions = torch.tensor([[len(slot.tokens) - 1] for _, slot in busy], device=self.device)
        hidden, taps = self._forward(rows, tokens, positions)
        chosen = self._choose(hidden, [slot.request.temperature for _, slot in busy]).tolist()
        for (_, slot), token, feature in zip(busy, chosen, taps.clone(), strict=True):
            slot.features.append(feature)
            slot.tokens.append(token)

    def _retire(self, on_finish: Callable[[Sequence], None]) -> None:
        for i, slot in enumerate(self.slots):
            if slot is None:
                continue
            produced = len(slot.tokens) - len(slot.request.prompt)
            if slot.tokens[-1] in self.stop_ids or produced >= slot.request.limit:
                features = torch.cat(slot.features)
                on_finish(Sequence(slot.request, slot.tokens, F.pad(features, (0, 0, 0, 1))))
                self.slots[i] = None
