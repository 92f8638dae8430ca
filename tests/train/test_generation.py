"""Batched generation gives what the model gives alone, and the features transformers gives."""

from __future__ import annotations

import torch

from dflash_compile.train.generation import BatchedGenerator
from dflash_compile.train.request import Request, Sequence

from .tiny import HIDDEN, TAPS, VOCAB, target


def test_every_slot_equals_transformers_alone() -> None:
    plain = target()
    generator = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(8, VOCAB, (n,), generator=generator).tolist()) for n in (3, 9, 14, 5, 7)]
    done: dict[tuple[int, ...], Sequence] = {}
    batched = BatchedGenerator(target(), TAPS, frozenset({2}), slots=2, length=96)
    batched.run((Request(p, 12) for p in prompts), lambda s: done.__setitem__(s.request.prompt, s))
    assert set(done) == set(prompts)
    for prompt in prompts:
        expected = plain.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)[
            0
        ].tolist()
        sequence = done[prompt]
        assert sequence.tokens == expected
        with torch.no_grad():
            states = plain(torch.tensor([expected]), output_hidden_states=True).hidden_states
        taps = torch.cat([states[layer + 1] for layer in TAPS], -1)[0]
        assert sequence.features.shape == (len(expected), len(TAPS) * HIDDEN)
        torch.testing.assert_close(sequence.features[:-1], taps[:-1], atol=1e-4, rtol=1e-3)
        assert (sequence.features[-1] == 0).all()


def test_requests_that_do_not_fit_are_passed_over() -> None:
    done: list[Sequence] = []
    batched = BatchedGenerator(target(), TAPS, frozenset({2}), slots=2, length=20)
    batched.run(iter([Request(tuple(range(8, 24)), 10), Request((9, 10), 6)]), done.append)
    assert [s.request.prompt for s in done] == [(9, 10)]
    assert batched.passed_over == 1


def test_sampling_is_repeatable_and_not_greedy() -> None:
    runs = []
    for _ in range(2):
        done: list[Sequence] = []
        BatchedGenerator(target(), TAPS, frozenset(), slots=3, length=64, seed=5).run(
            iter([Request((9, 10), 20, 1.5)]), done.append
        )
        runs.append(done[0].tokens)
    greedy: list[Sequence] = []
    BatchedGenerator(target(), TAPS, frozenset(), slots=3, length=64).run(iter([Request((9, 10), 20)]), greedy.append)
    assert runs[0] == runs[1]
    assert runs[0] != greedy[0].tokens
