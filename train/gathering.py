"""What to learn from: the target run over plain text and over prompts, into a feature folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dflash_compile.export.checkpoint import TargetCheckpoint
from dflash_compile.export.torch_model import load_model

from .compute import Compute
from .features import FeatureStore
from .generation import BatchedGenerator
from .options import TrainOptions
from .progress import TrainProgress
from .raw_text import TAG, add_raw_text
from .responses import ChatFrame, ResponsePlan, ResponseWriter

PROMPT_ROOM = 320
"""rows of a generation slot kept for the prompt"""


def _tokenizer(checkpoint: TargetCheckpoint) -> Any:
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
) -> int:
    """Fill `store` up to `options.text_tokens` and `options.response_tokens`; does nothing when it already holds them.

    Returns how many prompts were passed over because prompt and answer do not fit a slot.
    """
    texts = sum(e.length for e in store.entries if e.tag == TAG)
    responses = sum(e.length - e.prompt for e in store.entries if e.tag != TAG)
    if texts >= options.text_tokens and responses >= options.response_tokens:
        return 0
    model = load_model(checkpoint, compute.dtype, str(compute.device))

    def reading(done: int, total: int) -> None:
        report(TrainProgress("plain text", done, total, f"{len(store.entries)} sequences"))

    add_raw_text(store, model, _tokenizer(checkpoint), taps, options.text_tokens, options.seed, reading)
    length = min(PROMPT_ROOM + options.response_limit, checkpoint.spec.max_positions)
    generator = BatchedGenerator(model, taps, frozenset(checkpoint.spec.eos_ids), slots=128, length=length, seed=options.seed + len(store.entries))
    plan = ResponsePlan(options.response_tokens, options.seed, options.response_limit)
    writer = ResponseWriter(store, ChatFrame(_tokenizer(checkpoint)), generator, plan)

    def answering(done: int, total: int) -> None:
        left_out = f", {writer.passed_over} prompts too long" if writer.passed_over else ""
        report(TrainProgress("responses", done, total, f"{len(store.entries)} sequences{left_out}"))

    writer.run(answering)
    return writer.passed_over
