"""A first guess of the drafter's weights: those of another drafter of the same shape, or of its first layers.

The block may differ, since no weight depends on it; everything that decides what the weights mean may not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.dflash.v1 import DflashV1
from dflash_compile.export.pairing import pair
from dflash_compile.export.parameter_names import HEAD
from dflash_compile.export.spec import DrafterSpec
from dflash_compile.runtime.errors import PairingError

COMPARED = (
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate",
    "vocab",
    "taps",
    "mask_id",
    "attention_bias",
    "windows",
    "windows_from_anchor",
    "causal",
    "own_embedding",
    "embedding_scale",
    "output_multiplier",
    "logit_softcap",
    "convolution",
    "selector",
    "rope_theta",
    "rope_scaling",
    "rms_eps",
)
"""fields of a drafter's spec without which its weights mean something else"""


def options_of(spec: DrafterSpec) -> dict[str, Any]:
    """The fields of `TrainOptions` that a drafter answers by itself, as its training would have been asked for them.

    Its draft vocabulary is not among them: training keeps that one unless it is asked for another.
    """
    return {
        "layers": spec.layers,
        "block": spec.block,
        "taps": spec.taps,
        "mask_id": spec.mask_id,
        "sample_from_anchor": spec.sample_from_anchor,
    }


def check_start(target: TargetCheckpoint, wanted: DrafterSpec, start: DrafterCheckpoint) -> None:
    """Raise `PairingError` with every difference when `start` cannot begin the training of `wanted`, or is not for
    `target`.

    It may have more layers than `wanted`, whose first ones are taken. Reads headers only.
    """
    if HEAD in start.tensors.shapes():
        raise PairingError(
            "training cannot start from a drafter with a head of its own",
            where=str(start.path),
            why="the head that is trained with is the target's, or some of its rows",
            fix="start from a drafter without one, or train from the target's own layers",
        )
    differences = [
        f"{name} is {found}, not {needed}" for name, needed, found in _compared(wanted, start.spec) if needed != found
    ]
    if wanted.layers > start.spec.layers:
        differences.insert(0, f"it has {start.spec.layers} layers, not {wanted.layers}")
    if differences:
        raise PairingError(
            "training cannot start from this drafter",
            where=str(start.path),
            why="; ".join(differences),
            fix=(
                "leave out the options it answers itself (layers, taps, mask id), or train from the target's own layers"
            ),
        )
    pair(target, start)


def _compared(wanted: DrafterSpec, found: DrafterSpec) -> list[tuple[str, object, object]]:
    common = min(wanted.layers, found.layers)
    return [(name, _plain(wanted, name, common), _plain(found, name, common)) for name in COMPARED]


def _plain(spec: DrafterSpec, name: str, layers: int) -> object:
    """A field in the one form that compares: of the first `layers` layers; an empty window or causality list means full
    attention in each.
    """
    value: object = getattr(spec, name)
    empty: dict[str, object] = {"windows": None, "causal": False}
    if name in empty:
        return list(value)[:layers] if isinstance(value, tuple) and value else [empty[name]] * layers
    return list(value) if isinstance(value, tuple) else value


@torch.no_grad()
def take_weights(model: DflashV1, start: DrafterCheckpoint) -> None:
    """Copy the weights of `start`, which `check_start` has passed, into `model`, whatever float type they are stored
    in: layers `model` lacks stay out.
    """
    for name, parameter in model.named_parameters():
        parameter.copy_(start.read(name))


def start_identity(start: DrafterCheckpoint | None) -> str:
    """What a run starts from, for its saved state: "target", or a hash of the drafter's weights."""
    if start is None:
        return "target"
    weights = "".join(f"{name} {sha}\n" for name, sha in sorted(start.files.items()) if name.endswith(".safetensors"))
    return f"drafter {hashlib.sha256(weights.encode()).hexdigest()[:16]}"
