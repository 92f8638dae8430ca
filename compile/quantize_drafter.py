"""A drafter's int8 form: the linear layers of its draft layers in int8, everything else as it was.

`fc`, `hidden_norm` and all norms keep their dtype: everything the drafter sees of the target passes through the first
two, and their products reach thousands.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint
from dflash_compile.export.checkpoints.drafter_folder import refuse_existing
from dflash_compile.export.checkpoints.files import read_json
from dflash_compile.export.checkpoints.int8_source import SCALE
from dflash_compile.export.checkpoints.quantization_config import KEY, int8_channels
from dflash_compile.export.checkpoints.safetensors_source import DTYPES, WHOLE, SafetensorsSource
from dflash_compile.export.checkpoints.staging import staged
from dflash_compile.export.opening import open_drafter
from dflash_compile.runtime.errors import BuildError, UsageError

from .progress import Progress, no_progress

_CONFIG = "config.json"
_LEVELS = 127


def quantize_drafter(
    drafter: str | Path | DrafterCheckpoint, output: str | Path, force: bool = False, progress: Progress = no_progress
) -> Path:
    """Write the int8 form of `drafter` to the folder `output`, in the compressed-tensors layout and the drafter's own
    dialect; returns its path.

    The new checkpoint is held in memory while it is written: about half of a bfloat16 drafter. Equal inputs give equal
    bytes. Raises `UsageError` for an output that must not be replaced or a drafter that is int8 already,
    `CheckpointError` for one that cannot be read, `BuildError` for numbers that are not finite and where writing fails;
    then nothing is left behind.
    """
    place = Path(output)
    refuse_existing(place, force)
    opened = drafter if isinstance(drafter, DrafterCheckpoint) else open_drafter(drafter)
    config = read_json(opened.path / _CONFIG)
    if config.get(KEY) is not None:
        raise UsageError(
            "the drafter is quantised already", where=str(opened.path), fix="give the drafter that was trained"
        )
    if place.exists() and place.samefile(opened.path):
        raise UsageError(
            "the drafter would replace itself",
            where="--output",
            why="what int8 rounds off would be lost",
            fix="choose another path",
        )
    # Everything that is stored, also what a dialect takes out of sight, such as the maps of a reduced vocabulary.
    stored = SafetensorsSource(opened.path, {**DTYPES, "I64": "int64", "BOOL": "bool"})
    shapes = stored.shapes()
    chosen = [name for name in sorted(shapes) if is_quantised(name, shapes[name])]
    kept = [
        name.removesuffix(".weight")
        for name in sorted(shapes)
        if name not in chosen and name.endswith(".weight") and len(shapes[name]) == 2
    ]
    with staged(place, sum(path.stat().st_size for path in opened.path.glob("*.safetensors")), "drafter") as staging:
        save_file(
            dict(_tensors(stored, chosen, str(opened.path), progress)), staging / WHOLE, metadata={"format": "pt"}
        )
        (staging / WHOLE).chmod(0o644)
        (staging / _CONFIG).write_text(
            json.dumps({**config, KEY: int8_channels(kept)}, indent=2) + "\n", encoding="utf-8"
        )
        (staging / "README.md").write_text(card(opened, len(chosen), kept), encoding="utf-8")
        open_drafter(staging)
        refuse_existing(place, force)
    return place


def is_quantised(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor becomes int8: the weight of a projection in a draft layer."""
    return len(shape) == 2 and name.startswith("layers.") and name.endswith("_proj.weight")


def quantize_channels(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [N, K] as int8 [N, K] and scales [N, 1] of the weight's dtype; every row's error is at most half a step.

    Symmetric, rounded to nearest with the scale as it is stored, so that the scale's own rounding costs nothing.
    """
    wide = weight.float()
    scale = (wide.abs().amax(-1, keepdim=True) / _LEVELS).to(weight.dtype)
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    return torch.round(wide / scale.float()).clamp_(-_LEVELS, _LEVELS).to(torch.int8), scale


def card(drafter: DrafterCheckpoint, count: int, kept: list[str]) -> str:
    """README of the int8 form."""
    sources = "\n".join(f"- `{name}`: sha256 `{digest}`" for name, digest in sorted(drafter.files.items()))
    return f"""# {drafter.spec.name}, int8

The int8 form of the DFlash drafter `{drafter.spec.name}`, made from it by `dflash-compile quantize`. Built, run and trained for the same target.

| | |
|---|---|
| layout | compressed-tensors, format int-quantized |
| in int8 | {count} projections of {drafter.spec.layers} draft layers: symmetric, one {drafter.spec.dtype} scale per output channel |
| in {drafter.spec.dtype} | {", ".join(f"`{name}`" for name in kept)}, every norm and bias |

## Made from

{sources}
"""


def _tensors(stored: SafetensorsSource, chosen: list[str], where: str, progress: Progress) -> dict[str, torch.Tensor]:
    shapes, quantised = stored.shapes(), set(chosen)
    tensors: dict[str, torch.Tensor] = {}
    for number, name in enumerate(sorted(shapes)):
        progress("quantising", number, len(shapes))
        weight = stored.rows(name, 0, shapes[name][0])
        if not bool(weight.isfinite().all()):
            raise BuildError(
                f"tensor {name!r} holds numbers that are not finite",
                where=where,
                why="the weights are damaged",
                fix="copy them again",
            )
        if name in quantised:
            tensors[name], tensors[name + SCALE] = quantize_channels(weight)
        else:
            tensors[name] = weight.contiguous()
    return tensors
