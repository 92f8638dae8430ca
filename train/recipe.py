"""From a target to a drafter: responses, features, training, checkpoint. The public entry of `train/`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint, TextSource
from dflash_compile.export.checkpoints.drafter_folder import TRAINED_WITH, refuse_existing
from dflash_compile.export.checkpoints.text import template_hash, vocabulary_hash
from dflash_compile.export.checkpoints.thinking import thinking_switch
from dflash_compile.export.checkpoints.torch_model import load_model
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.dflash.vocabulary import DraftVocabulary
from dflash_compile.export.drafters import speculators, zlab_v1
from dflash_compile.export.spec import DrafterSpec, TargetSpec
from dflash_compile.runtime.errors import UsageError

from .card import card
from .compiled_target import CompiledTarget
from .compute import Compute, choose_compute
from .curve import write_curve
from .data import Corpus
from .evaluate import Acceptance
from .features import FeatureStore, owner_of
from .from_drafter import check_start, start_identity, take_weights
from .gathering import gather
from .log import TrainLog
from .options import TrainOptions
from .progress import TrainProgress
from .shape import check_shape, choose_mask_id, drafter_spec
from .teacher import Teacher
from .trainer import Trainer, TrainEvent
from .vocabulary import check_size, choose_vocabulary
from .warm_start import warm_start


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind."""

    drafter: Path
    acceptance: Acceptance
    """of the drafter as it was saved, on the held-out answers"""
    before: Acceptance | None
    """of the drafter that training started from, on the same answers; None where it started from the target's layers"""
    steps: int
    """steps this call took; 0 where the run was already over"""
    passed_over: int
    """prompts this call left out because they do not fit a slot together with their answer"""
    curve: Path | None
    """the training curve in the drafter's folder; None where matplotlib is missing or no step was ever evaluated"""


def _trainer(
    checkpoint: TargetCheckpoint,
    stores: list[FeatureStore],
    spec: DrafterSpec,
    options: TrainOptions,
    compute: Compute,
    state: Path,
    start: DrafterCheckpoint | None,
) -> tuple[Trainer, DraftVocabulary | None]:
    """The trainer, and the tokens that its drafter can propose where those are not all."""
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
    head: torch.Tensor = target.get_output_embeddings().weight.to(compute.device)
    embedding: torch.Tensor = target.get_input_embeddings().get_parameter("weight").to(compute.device)
    teacher = Teacher(target, spec.taps).on(compute)
    vocabulary = _vocabulary(checkpoint.spec, corpus, options, spec.mask_id, start)
    ids = None if vocabulary is None else torch.tensor(vocabulary.ids)
    return (
        Trainer(
            model.to(compute.device),
            embedding,
            head,
            corpus,
            options,
            state,
            teacher,
            _identity(spec, vocabulary, start),
            compute,
            ids,
        ),
        vocabulary,
    )


def _identity(spec: DrafterSpec, vocabulary: DraftVocabulary | None, start: DrafterCheckpoint | None) -> str:
    """What a state must agree with to go on: weights of the same shapes may still mean something else."""
    ids = "" if vocabulary is None else hashlib.sha256(str(vocabulary.ids).encode()).hexdigest()[:8]
    tokens = "all tokens" if vocabulary is None else f"{len(vocabulary.ids)} tokens ({ids})"
    first = "the anchor" if spec.sample_from_anchor else "a mask"
    return f"from {start_identity(start)}, block {spec.block}, mask {spec.mask_id}, first proposal of {first}, {tokens}"


def _vocabulary(
    target: TargetSpec, corpus: Corpus, options: TrainOptions, mask_id: int, start: DrafterCheckpoint | None
) -> DraftVocabulary | None:
    """The most frequent tokens, as many as were asked for; else those of the drafter begun with, where they are not
    all.
    """
    if options.draft_vocabulary is None:
        return None if start is None else start.vocabulary
    return choose_vocabulary(corpus.token_counts(responses_only=True), options.draft_vocabulary, target, mask_id)


def train(
    checkpoint: TargetCheckpoint,
    output: Path,
    options: TrainOptions,
    work: Path,
    extra_features: tuple[Path, ...] = (),
    force: bool = False,
    on_progress: Callable[[TrainProgress], None] = lambda progress: None,
    start: DrafterCheckpoint | None = None,
    restart: bool = False,
    engine: CompiledTarget | None = None,
) -> TrainResult:
    """Train a drafter for `checkpoint` and save it with a card to `output`: in the z-lab layout, or in that of
    speculators where only that one can say what it is.

    `work` keeps features and the training state: a second call with the same folder resumes. `extra_features` are
    further feature folders of the same target and taps. `start` is a drafter whose weights are the first, instead of
    the target's last layers; it needs the shape, taps and mask id of the one to be trained (`from_drafter.options_of`),
    else `PairingError`. `restart` forgets the training state in `work` and begins at the first step; features are kept.
    `engine` is the compiled target, whose own answers and taps are learned from instead of the transformers model's;
    its taps must be those asked for.

    Raises `UsageError` for options that cannot work, or when `output` exists and is no drafter, is `checkpoint` or
    `start`, or `force` is not set (asked before the hours, not after), and `StoreMismatch` for folders of another
    target or engine.
    """
    refuse_existing(output, force)
    sources = {"the target": checkpoint.path} | (
        {"the drafter it starts from": start.path} if start is not None else {}
    )
    for name, path in sources.items():
        if output.exists() and output.samefile(path):
            raise UsageError(
                f"the drafter would replace {name}",
                where=str(output),
                why="a run needs it again to be resumed",
                fix="choose another output",
            )
    check_shape(checkpoint.spec, options)
    for folder in extra_features:
        if not folder.is_dir():
            raise UsageError(
                "there is no such feature folder",
                where=str(folder),
                fix="give the `features` folder of another run's --work",
            )
    mask_id = choose_mask_id(checkpoint.text.tokenizer_json, checkpoint.spec, options.mask_id)
    size = options.draft_vocabulary if start is None or options.draft_vocabulary is not None else start.spec.draft_vocab
    spec = drafter_spec(
        checkpoint.spec, options, mask_id, bool(getattr(checkpoint.config, "attention_bias", False)), size
    )
    if options.draft_vocabulary is not None:
        check_size(options.draft_vocabulary, checkpoint.spec)
    if start is not None:
        check_start(checkpoint, spec, start)
    width = len(spec.taps) * checkpoint.spec.hidden
    owner = owner_of(checkpoint) if engine is None else f"{owner_of(checkpoint)} {engine.identity}"
    store = FeatureStore(work / "features", width, spec.taps, owner)
    compute = choose_compute(options.precision)
    passed_over = gather(checkpoint, store, spec.taps, options, compute, on_progress, engine)
    stores = [store, *(FeatureStore(folder, width, spec.taps, owner) for folder in extra_features)]
    state, log = work / "state.safetensors", work / "log.jsonl"
    if restart:
        state.unlink(missing_ok=True)
    trainer, vocabulary = _trainer(checkpoint, stores, spec, options, compute, state, start)
    first = trainer.clock.step
    before = starting_acceptance(trainer, start) if start is not None else None
    acceptance = _run(trainer, log, work / "curve.png", spec.name, on_progress)
    tensors = {name: p.detach().cpu().to(torch.bfloat16) for name, p in trainer.model.named_parameters()}
    text = checkpoint.text
    trained_with = {
        "vocabulary_sha256": vocabulary_hash(text.tokenizer_json),
        "template_sha256": template_hash(text.chat_template),
    } | _thinking(text)
    curve = write_curve(log, work / "curve.png", spec.name)
    readme = card(
        checkpoint,
        trainer,
        spec,
        acceptance,
        vocabulary,
        start.spec.name if start else None,
        engine.identity if engine else None,
    )
    files = {"README.md": readme.encode()}
    if curve is not None:
        files["curve.png"] = curve.read_bytes()
    extra = {TRAINED_WITH: trained_with}
    if spec.dialect == zlab_v1.DIALECT:
        saved = zlab_v1.save(spec, tensors, output, extra, extra_files=files, replace=force)
    else:  # the head stays the target's, so its rows need not be stored again
        saved = speculators.save(spec, tensors, vocabulary, output, extra, extra_files=files, replace=force)
    return TrainResult(
        saved,
        acceptance,
        before,
        trainer.clock.step - first,
        passed_over,
        saved / "curve.png" if curve is not None else None,
    )


def _thinking(text: TextSource) -> dict[str, bool]:
    """Whether the prompts asked for thinking, as `trained_with` records it: `responses.ChatFrame` sets no variable of
    the template.
    """
    switch = thinking_switch(text)
    return {} if switch is None or switch.default is None else {"thinking": switch.default}


def starting_acceptance(trainer: Trainer, start: DrafterCheckpoint) -> Acceptance:
    """τ of `start` on the trainer's held-out answers, also where a resumed run has moved on from it."""
    if trainer.clock.step == 0:
        return trainer.acceptance()
    trained = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    take_weights(trainer.model, start)
    acceptance = trainer.acceptance()
    trainer.model.load_state_dict(trained)
    return acceptance


def _run(
    trainer: Trainer, log_file: Path, curve: Path, title: str, on_progress: Callable[[TrainProgress], None]
) -> Acceptance:
    """Train to the end, log every step and draw `curve` at every evaluation; the acceptance of the weights at the
    end.
    """
    last: list[Acceptance] = []
    with TrainLog(log_file) as log:

        def report(event: TrainEvent) -> None:
            log.write(event)
            detail = f"loss {event.loss:.3f}"
            if event.acceptance is not None:
                last[:] = [event.acceptance]
                detail += f", τ {event.acceptance.tau:.3f}"
                write_curve(log_file, curve, title)
            on_progress(TrainProgress("training", event.done, 1.0, detail, event))

        trainer.run(report)
    return last[0] if last else trainer.acceptance()
