"""What to learn from: the target run over plain text and over prompts, into a feature folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.checkpoints.torch_model import load_model

from .compiled_generation import CompiledGenerator
from .compiled_target import CompiledTarget
from .compute import Compute
from .features import FeatureStore
from .generation import BatchedGenerator
from .options import TrainOptions
from .progress import TrainProgress
from .raw_text import LENGTH as TEXT_LENGTH
from .raw_text import TAG, Reader, add_raw_text, reader
from .request import Generator
from .responses import ChatFrame, ResponsePlan, ResponseWriter

PROMPT_ROOM = 320
"""rows of a generation slot kept for the prompt"""
COMPILED_SLOTS = 64
"""sequences an engine advances at once"""


def tokenizer_of(checkpoint: TargetCheckpoint) -> Any:
    """The checkpoint's tokenizer and chat template as transformers' object."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(checkpoint.text.tokenizer_json.decode()))
    tokenizer.chat_template = checkpoint.text.chat_template
    tokenizer.bos_token, tokenizer.eos_token = checkpoint.text.bos_token, checkpoint.text.eos_token
    return tokenizer


def gather(
    checkpoint: TargetCheckpoint,
    store: FeatureStore,
    taps: tuple[int, ...],
    options: TrainOptions,
    compute: Compute,
    report: Callable[[TrainProgress], None],
    engine: CompiledTarget | None = None,
) -> int:
    """Fill `store` up to `options.text_tokens` and `options.response_tokens`; does nothing when it already holds them.

    The target is the transformers model, or its compiled `engine` where one is given. Returns how many prompts were
    passed over because prompt and answer do not fit a slot.
    """
    texts = sum(e.length for e in store.entries if e.tag == TAG)
    responses = sum(e.length - e.prompt for e in store.entries if e.tag != TAG)
    if texts >= options.text_tokens and responses >= options.response_tokens:
        return 0
    source = _Torch(checkpoint, taps, compute) if engine is None else _Compiled(checkpoint, engine)

    def reading(done: int, total: int) -> None:
        report(TrainProgress("plain text", done, total, f"{len(store.entries)} sequences"))

    length = min(TEXT_LENGTH, source.positions)
    add_raw_text(
        store, source.reader(length), tokenizer_of(checkpoint), options.text_tokens, options.seed, reading, length
    )
    generator = source.generator(PROMPT_ROOM + options.response_limit, options.seed + len(store.entries))
    plan = ResponsePlan(options.response_tokens, options.seed, options.response_limit)
    writer = ResponseWriter(store, ChatFrame(tokenizer_of(checkpoint)), generator, plan)

    def answering(done: int, total: int) -> None:
        left_out = f", {writer.passed_over} prompts too long" if writer.passed_over else ""
        report(TrainProgress("responses", min(done, total), total, f"{len(store.entries)} sequences{left_out}"))

    writer.run(answering)
    return writer.passed_over


class _Torch:
    """The target as transformers runs it."""

    def __init__(self, checkpoint: TargetCheckpoint, taps: tuple[int, ...], compute: Compute) -> None:
        self.checkpoint, self.taps = checkpoint, taps
        self.model = load_model(checkpoint, compute.dtype, str(compute.device))
        self.positions = checkpoint.spec.max_positions

    def reader(self, length: int) -> Reader:
        return reader(self.model, self.taps)

    def generator(self, length: int, seed: int) -> Generator:
        length = min(length, self.positions)
        return BatchedGenerator(
            self.model, self.taps, frozenset(self.checkpoint.spec.eos_ids), slots=128, length=length, seed=seed
        )


class _Compiled:
    """The target as a bundle runs it."""

    def __init__(self, checkpoint: TargetCheckpoint, engine: CompiledTarget) -> None:
        self.checkpoint, self.engine, self.positions = checkpoint, engine, engine.context

    def reader(self, length: int) -> Reader:
        self.engine.reserve(1, length)
        return lambda ids: torch.from_numpy(self.engine.prefill(0, tuple(ids))[1])

    def generator(self, length: int, seed: int) -> Generator:
        self.engine.reserve(COMPILED_SLOTS, min(length, self.positions))
        return CompiledGenerator(self.engine, frozenset(self.checkpoint.spec.eos_ids), seed)
