"""The card of a trained drafter: how it was made and what it does."""

from __future__ import annotations

from dataclasses import asdict

from dflash_compile.export.checkpoint import TargetCheckpoint
from dflash_compile.export.spec import DrafterSpec

from .evaluate import Acceptance
from .raw_text import TAG
from .trainer import Trainer


def card(checkpoint: TargetCheckpoint, trainer: Trainer, spec: DrafterSpec, acceptance: Acceptance, start: str | None = None) -> str:
    """README of the trained drafter: how it was made and what it does. `start`: the drafter its training began from, if any."""
    options, clock = trainer.options, trainer.clock
    kept = sum(entry.length - entry.prompt for _, entry in trainer.corpus.train if entry.tag != TAG)
    plain = sum(entry.length for _, entry in trainer.corpus.train if entry.tag == TAG)
    positions = ", ".join(f"{share:.2f}" for share in acceptance.by_position)
    sources = "\n".join(f"- `{name}`: sha256 `{digest}`" for name, digest in sorted(checkpoint.files.items()))
    settings = "\n".join(f"- {name}: {value}" for name, value in asdict(options).items() if value is not None)
    first = "the target's last layers" if start is None else f"the drafter {start}"
    return f"""# {spec.name}

A DFlash drafter (z-lab v1 layout) for exactly one target, **{checkpoint.spec.name}**, trained by `dflash-compile train`.

| | |
|---|---|
| draft layers | {spec.layers}, {spec.hidden} wide, {spec.heads}/{spec.kv_heads} heads x {spec.head_dim} |
| block | {spec.block} rows (the anchor and {spec.block - 1} proposals) |
| taps (output of 0-based layer) | {list(spec.taps)} of {spec.target_layers} |
| mask token id | {spec.mask_id} |
| trained on | {kept} response tokens of the target itself and {plain} of plain text, {len(trainer.corpus.train)} sequences |
| optimisation | {clock.step} steps, {clock.rows} block rows, {clock.seconds / 3600:.2f} hours |
| held-out τ | {acceptance.tau:.3f} tokens a cycle over {len(trainer.held_out)} sequences never trained on, by walking them in torch |
| accepted by position | {positions} |

The responses answer filled templates, text of the Python standard library, and questions the target made up itself;
four in five are greedy. Weights start from {first}. Chat template: the target's own.

## Target files

{sources}

## Options

{settings}
"""
