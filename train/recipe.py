"""From a target to a drafter: responses, features, training, checkpoint. The public entry of `train/`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dflash_compile.export.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.dflash_v1 import DflashV1
from dflash_compile.export.drafters.zlab_v1 import TRAINED_WITH, save
from dflash_compile.export.spec import DrafterSpec, TargetSpec
from dflash_compile.export.text import template_hash, vocabulary_hash
from dflash_compile.export.torch_model import load_model
from dflash_compile.runtime.errors import UsageError

from .card import card
from .data import Corpus
from .evaluate import Acceptance
from .features import FeatureStore
from .from_drafter import check_start, start_identity, take_weights
from .generation import BatchedGenerator
from .options import TrainOptions, default_taps
from .raw_text import TAG, add_raw_text
from .responses import ChatFrame, ResponsePlan, ResponseWriter
from .teacher import Teacher
from .trainer import Trainer, TrainEvent
from .warm_start import warm_start

PROMPT_ROOM = 320
"""rows of a generation slot kept for the prompt"""


@dataclass(frozen=True)
class TrainProgress:
    """Where a run is: `phase` is "plain text", "responses" or "training"; `done` of `total` in the phase's own unit."""

    phase: str
    done: float
    total: float
    detail: str
    event: TrainEvent | None = None


def drafter_spec(target: TargetSpec, options: TrainOptions, mask_id: int, bias: bool = False) -> DrafterSpec:
    """The drafter to train for `target`: its own shapes, so that its last layers can start it. `bias`: its projections have one."""
    return DrafterSpec(
        dialect="zlab_v1",
        name=f"{target.name}-dflash",
        layers=options.layers,
        hidden=target.hidden,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        intermediate=target.intermediate,
        vocab=target.vocab,
        max_positions=target.max_positions,
        block=options.block,
        mask_id=mask_id,
        taps=options.taps if options.taps is not None else default_taps(target.layers),
        rms_eps=target.rms_eps,
        rope_theta=target.rope_theta,
        dtype="bfloat16",
        target_layers=target.layers,
        attention_bias=bias,
    )


def choose_mask_id(tokenizer_json: bytes, target: TargetSpec, wanted: int | None) -> int:
    """A token that text never holds: `wanted`, or the last special token that is neither pad, bos nor eos.

    Raises `UsageError` when there is none, or when `wanted` is one of those.
    """
    taken = {target.pad_id, target.bos_id, *target.eos_ids}
    if wanted is not None:
        if wanted in taken or not 0 <= wanted < target.vocab:
            raise UsageError(
                f"mask id {wanted} is pad, bos, eos or outside the vocabulary of {target.vocab}",
                where="--mask-id",
                fix="name a special token that text never holds",
            )
        return wanted
    added = [token["id"] for token in json.loads(tokenizer_json)["added_tokens"] if token["special"]]
    free = [token for token in added if token not in taken and token < target.vocab]
    if not free:
        raise UsageError("the tokenizer has no spare special token for the mask", where="tokenizer added_tokens", fix="name one with --mask-id")
    return int(max(free))


def _check_layers(target: TargetSpec, options: TrainOptions) -> None:
    if target.layers < 2:
        raise UsageError(f"{target.name} has a single layer", why="a drafter reads layers before the last", fix="use a deeper target")
    if options.layers > target.layers:
        raise UsageError(
            f"a drafter of {options.layers} layers for a target of {target.layers}",
            where="--layers",
            why="its layers start as the target's last ones",
            fix=f"ask for at most {target.layers}, better far fewer",
        )


def _tokenizer(checkpoint: TargetCheckpoint) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(checkpoint.text.tokenizer_json.decode()))
    tokenizer.chat_template = checkpoint.text.chat_template
    tokenizer.bos_token, tokenizer.eos_token = checkpoint.text.bos_token, checkpoint.text.eos_token
    return tokenizer


def _generate(checkpoint: TargetCheckpoint, store: FeatureStore, spec: DrafterSpec, options: TrainOptions, report: Callable[[TrainProgress], None]) -> None:
    """Fill `store` up to `options.text_tokens` and `options.response_tokens`; does nothing when it already holds them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = sum(e.length for e in store.entries if e.tag == TAG)
    responses = sum(e.length - e.prompt for e in store.entries if e.tag != TAG)
    if texts >= options.text_tokens and responses >= options.response_tokens:
        return
    model = load_model(checkpoint, torch.bfloat16, device)

    def reading(done: int, total: int) -> None:
        report(TrainProgress("plain text", done, total, f"{len(store.entries)} sequences"))

    add_raw_text(store, model, _tokenizer(checkpoint), spec.taps, options.text_tokens, options.seed, reading)
    length = min(PROMPT_ROOM + options.response_limit, checkpoint.spec.max_positions)
    generator = BatchedGenerator(model, spec.taps, frozenset(checkpoint.spec.eos_ids), slots=128, length=length, seed=options.seed + len(store.entries))
    plan = ResponsePlan(options.response_tokens, options.seed, options.response_limit)
    writer = ResponseWriter(store, ChatFrame(_tokenizer(checkpoint)), generator, plan)
    writer.run(lambda done, total: report(TrainProgress("responses", done, total, f"{len(store.entries)} sequences")))


def _trainer(
    checkpoint: TargetCheckpoint, stores: list[FeatureStore], spec: DrafterSpec, options: TrainOptions, state: Path, start: DrafterCheckpoint | None
) -> Trainer:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    target = load_model(checkpoint, torch.float32)
    torch.manual_seed(options.seed)
    model = DflashV1(spec, len(spec.taps) * checkpoint.spec.hidden)
    corpus = Corpus(stores, options.held_out)
    if not corpus.train:
        raise UsageError("the feature folder holds no sequence to train on", fix="ask for more --response-tokens")
    if start is not None:
        take_weights(model, start)
    else:
        tokens, _, _ = corpus.triple(corpus.train[0])
        warm_start(model, target, tokens.long()[None])
    head: torch.Tensor = target.get_output_embeddings().weight.to(device)
    embedding: torch.Tensor = target.get_input_embeddings().get_parameter("weight").to(device)
    teacher = Teacher(target, spec.taps).low(device)
    return Trainer(model.to(device), embedding, head, corpus, options, state, teacher, start_identity(start))


def identity(checkpoint: TargetCheckpoint) -> str:
    """Name and hash of a target: features of two models of the same name must never mix."""
    digest = hashlib.sha256("".join(f"{name} {sha}\n" for name, sha in sorted(checkpoint.files.items())).encode())
    return f"{checkpoint.spec.name} {digest.hexdigest()[:16]}"


def train(
    checkpoint: TargetCheckpoint,
    output: Path,
    options: TrainOptions,
    work: Path,
    extra_features: tuple[Path, ...] = (),
    force: bool = False,
    on_progress: Callable[[TrainProgress], None] = lambda progress: None,
    start: DrafterCheckpoint | None = None,
) -> Path:
    """Train a drafter for `checkpoint` and save it, in the z-lab layout with a card, to `output`.

    `work` keeps features and the training state: a second call with the same folder resumes. `extra_features` are further
    feature folders of the same target and taps. `start` is a drafter whose weights are the first, instead of the target's last
    layers; it needs the shape, taps and mask id of the one to be trained (`from_drafter.options_of`), else `PairingError`.
    Raises `UsageError` for options that cannot work, or when `output` exists and `force` is not set (asked before the hours,
    not after), and `StoreMismatch` for folders of another target.
    """
    if output.exists() and not force:
        raise UsageError("the output folder exists", where=str(output), fix="choose another folder, or pass --force to replace it")
    _check_layers(checkpoint.spec, options)
    for folder in extra_features:
        if not folder.is_dir():
            raise UsageError("there is no such feature folder", where=str(folder), fix="give the `features` folder of another run's --work")
    mask_id = choose_mask_id(checkpoint.text.tokenizer_json, checkpoint.spec, options.mask_id)
    spec = drafter_spec(checkpoint.spec, options, mask_id, bool(getattr(checkpoint.config, "attention_bias", False)))
    if start is not None:
        check_start(checkpoint, spec, start)
    width = len(spec.taps) * checkpoint.spec.hidden
    owner = identity(checkpoint)
    store = FeatureStore(work / "features", width, spec.taps, owner)
    _generate(checkpoint, store, spec, options, on_progress)
    stores = [store, *(FeatureStore(folder, width, spec.taps, owner) for folder in extra_features)]
    trainer = _trainer(checkpoint, stores, spec, options, work / "state.safetensors", start)
    log = (work / "log.jsonl").open("a")
    last: list[Acceptance] = []

    def report(event: TrainEvent) -> None:
        detail = f"loss {event.loss:.3f}"
        if event.acceptance is not None:
            last[:] = [event.acceptance]
            detail += f", τ {event.acceptance.tau:.3f}"
        entry: dict[str, object] = {"step": event.clock.step, "rows": event.clock.rows, "loss": event.loss, "learning_rate": event.learning_rate}
        if event.acceptance is not None:
            entry |= {"tau": event.acceptance.tau, "by_position": list(event.acceptance.by_position)}
        log.write(json.dumps(entry) + "\n")
        on_progress(TrainProgress("training", event.done, 1.0, detail, event))

    with log:
        trainer.run(report)
    acceptance = last[0] if last else trainer.acceptance()
    tensors = {name: p.detach().cpu().to(torch.bfloat16) for name, p in trainer.model.named_parameters()}
    text = checkpoint.text
    trained_with = {"vocabulary_sha256": vocabulary_hash(text.tokenizer_json), "template_sha256": template_hash(text.chat_template)}
    readme = card(checkpoint, trainer, spec, acceptance, start.spec.name if start else None).encode()
    return save(spec, tensors, output, {TRAINED_WITH: trained_with}, extra_files={"README.md": readme}, replace=force)
