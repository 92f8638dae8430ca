"""The card of a trained drafter: how it was made and what it does."""

from __future__ import annotations

from dataclasses import asdict

from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
from dflash_compile.export.dflash.vocabulary import DraftVocabulary
from dflash_compile.export.spec import DrafterSpec

from .evaluate import Acceptance
from .raw_text import TAG
from .trainer import Trainer
from .vocabulary import coverage


def card(
    checkpoint: TargetCheckpoint,
    trainer: Trainer,
    spec: DrafterSpec,
    acceptance: Acceptance,
    vocabulary: DraftVocabulary | None = None,
    start: str | None = None,
    engine: str | None = None,
) -> str:
    """README of the trained drafter: how it was made and what it does.

    `vocabulary`: the tokens it can propose, where those are not all; `start`: the drafter its training began from, if
    any; `engine`: the compiled target whose answers and taps it learned from, if any.
    """
    layout = {"zlab_v1": "z-lab v1"}.get(spec.dialect, spec.dialect)
    options, clock = trainer.options, trainer.clock
    kept = sum(entry.length - entry.prompt for _, entry in trainer.corpus.train if entry.tag != TAG)
    plain = sum(entry.length for _, entry in trainer.corpus.train if entry.tag == TAG)
    positions = ", ".join(f"{share:.2f}" for share in acceptance.by_position)
    sources = "\n".join(f"- `{name}`: sha256 `{digest}`" for name, digest in sorted(checkpoint.files.items()))
    settings = "\n".join(f"- {name}: {value}" for name, value in asdict(options).items() if value is not None)
    proposes = "the anchor's row" if spec.sample_from_anchor else "a mask"
    first = "the target's last layers" if start is None else f"the drafter {start}"
    source = "the transformers model" if engine is None else f"the compiled target {engine}"
    return f"""# {spec.name}

A DFlash drafter ({layout} layout) for exactly one target, **{checkpoint.spec.name}**, trained by `dflash-compile train`.

| | |
|---|---|
| draft layers | {spec.layers}, {spec.hidden} wide, {spec.heads}/{spec.kv_heads} heads x {spec.head_dim} |
| block | {spec.block} rows (the anchor and {spec.block - 1} proposals); the first is of {proposes} |
| taps (output of 0-based layer) | {list(spec.taps)} of {spec.target_layers} |
| mask token id | {spec.mask_id} |
| can propose | {_proposed(trainer, vocabulary)} |
| trained on | {kept} response tokens of the target itself and {plain} of plain text, {len(trainer.corpus.train)} sequences |
| optimisation | {clock.step} steps, {clock.rows} block rows, {clock.seconds / 3600:.2f} hours |
| held-out τ | {acceptance.tau:.3f} tokens a cycle over {len(trainer.held_out)} sequences never trained on, by walking them in torch |
| accepted by position | {positions} |

The responses answer filled templates, text of the Python standard library, and questions the target made up itself;
four in five are greedy. Answers and taps are those of {source}. Weights start from {first}. Chat template: the target's own.

## Target files

{sources}

## Options

{settings}
"""


def _proposed(trainer: Trainer, vocabulary: DraftVocabulary | None) -> str:
    if vocabulary is None:
        return "any token of the target"
    share = coverage(trainer.corpus.token_counts(responses_only=True), vocabulary.ids)
    return (
        f"{len(vocabulary.ids)} of {vocabulary.vocab} tokens, {share:.1%} of the response tokens trained on; the head"
        " is the target's rows for them"
    )
