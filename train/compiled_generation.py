"""Batched generation by the compiled target: the drafter learns from the very taps it will be given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from .compiled_target import CompiledTarget, FloatArray
from .generation import SAMPLE_TOP_K
from .request import Request, Sequence


@dataclass
class _Slot:
    request: Request
    tokens: list[int]
    taps: list[FloatArray] = field(default_factory=list)

    @property
    def produced(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


class CompiledGenerator:
    """Continuous batching over a `CompiledTarget`: a slot that finishes takes the next request."""

    def __init__(self, target: CompiledTarget, stop_ids: frozenset[int], seed: int = 0) -> None:
        """Uses all the slots that `target` has reserved."""
        self.target, self.stop_ids, self.length = target, stop_ids, target.length
        self._slots: list[_Slot | None] = [None] * target.slots
        self._random = np.random.default_rng(seed)
        self._tokens, self._positions = np.zeros(target.slots, np.int32), np.zeros(target.slots, np.int32)

    def fits(self, request: Request) -> bool:
        """Whether prompt and answer fit a slot."""
        return 0 < len(request.prompt) <= self.length - request.limit

    def run(self, requests: Iterator[Request], on_finish: Callable[[Sequence], None]) -> None:
        """Serve `requests` until the iterator ends; `on_finish` gets each sequence as it completes, features in
        bfloat16.
        """
        open_ended = True
        while True:
            for index in range(len(self._slots)):
                while open_ended and self._slots[index] is None:
                    request = next(requests, None)
                    if request is None:
                        open_ended = False
                    elif self.fits(request):
                        self._admit(index, request)
                        self._retire(index, on_finish)
            if not any(self._slots):
                return
            self._step(on_finish)

    def _admit(self, index: int, request: Request) -> None:
        logits, taps = self.target.prefill(index, request.prompt)
        slot = _Slot(request, list(request.prompt), [taps])
        slot.tokens.append(self._choose(logits, request.temperature))
        self._slots[index] = slot

    def _step(self, on_finish: Callable[[Sequence], None]) -> None:
        for index, slot in enumerate(self._slots):
            if slot is not None:
                self._tokens[index], self._positions[index] = slot.tokens[-1], len(slot.tokens) - 1
            else:  # an empty slot computes too, at its start where that costs least
                self._tokens[index], self._positions[index] = 0, 0
        logits, taps = self.target.step(self._tokens, self._positions)
        for index, slot in enumerate(self._slots):
            if slot is not None:
                slot.taps.append(taps[index : index + 1].copy())
                slot.tokens.append(self._choose(logits[index], slot.request.temperature))
                self._retire(index, on_finish)

    def _choose(self, logits: NDArray[np.float32], temperature: float) -> int:
        """The most likely token, or one of the `SAMPLE_TOP_K` most likely at `temperature`."""
        if temperature == 0:
            return int(logits.argmax())
        ids = (
            np.argpartition(logits, -SAMPLE_TOP_K)[-SAMPLE_TOP_K:]
            if len(logits) > SAMPLE_TOP_K
            else np.arange(len(logits))
        )
        noise = self._random.gumbel(size=len(ids))
        return int(ids[(logits[ids] / temperature + noise).argmax()])

    def _retire(self, index: int, on_finish: Callable[[Sequence], None]) -> None:
        slot = self._slots[index]
        if slot is None or (slot.tokens[-1] not in self.stop_ids and slot.produced < slot.request.limit):
            return
        taps = np.concatenate(
            [*slot.taps, np.zeros((1, self.target.width), np.float32)]
        )  # the last token was never fed
        on_finish(Sequence(slot.request, slot.tokens, torch.from_numpy(taps).to(torch.bfloat16)))
        self._slots[index] = None
