"""The z-lab DFlash v1 layout: config.json with `dflash_config`, safetensors weights, no embedding and no head.

What the keys mean follows PyPI `dflash` 0.1.0, except that nothing has a default there that decides acceptance here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import UsageError

from ..checkpoints.drafter_folder import check_dtypes, refuse_existing, write_folder
from ..checkpoints.files import section
from ..checkpoints.skeleton import check_shapes
from ..spec import DrafterSpec
from ._layout import FolderLayout, named, tensor_shapes
from ._zlab_config import DIALECT as DIALECT
from ._zlab_config import read_spec, write_config

if TYPE_CHECKING:
    import torch

SIGN = "a directory whose config.json says architectures: DFlashDraftModel"


def _evidence(config: Mapping[str, Any]) -> str | None:
    alone = "speculators_model_type" not in config and "use_swa" not in section(config.get("dflash_config"))
    return named("DFlashDraftModel")(config) if alone else None


LAYOUT = FolderLayout(_evidence, read_spec)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify


def save(
    spec: DrafterSpec,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    extra_config: Mapping[str, Any] | None = None,
    *,
    extra_files: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Path:
    """Write a drafter that `open_checkpoint` and PyPI `dflash` both read. Staged beside `folder`, then renamed: never
    half there.

    `tensors` are exactly those of `tensor_shapes(spec)`, all of dtype `spec.dtype`; `extra_config` adds keys to
    config.json (`drafter_folder.TRAINED_WITH`, for one) and `extra_files` are written beside it, by plain name.

    Raises `UsageError` when `folder` exists and `replace` is not set, `CheckpointError` when the tensors are not those
    of the spec, and `BuildError` when writing fails.
    """
    refuse_existing(folder, replace)
    _check_representable(spec, folder)
    found, where = {name: tuple(value.shape) for name, value in tensors.items()}, "the drafter to be saved"
    check_shapes(tensor_shapes(spec, len(found), where), found, where)
    check_dtypes(tensors, spec.dtype)
    return write_folder(folder, write_config(spec) | dict(extra_config or {}), tensors, extra_files or {})


def _check_representable(spec: DrafterSpec, folder: Path) -> None:
    """The layout has one window and one `is_causal` for all layers: refuse a spec it would not give back."""
    for what, why in _unrepresentable(spec):
        raise UsageError(
            f"{what} cannot be written in the z-lab v1 layout",
            where=str(folder),
            why=why,
            fix="write it in the speculators layout",
        )
    back = read_spec(write_config(spec), folder, spec.dtype)
    full = (None,) * spec.layers, (False,) * spec.layers
    given, declared = (back.windows, back.causal), (spec.windows or full[0], spec.causal or full[1])
    if given != declared or spec.target_layers is None:
        raise UsageError(
            "this drafter cannot be written in the z-lab v1 layout",
            where=str(folder),
            why="the layout needs the number of target layers, and has one window and one causality for all layers",
            fix="give target_layers, and windows and causality the layout can say",
        )


def _unrepresentable(spec: DrafterSpec) -> Iterator[tuple[str, str]]:
    if spec.draft_vocab is not None:
        yield "a reduced draft vocabulary", "the layout has no head of its own"
    if spec.own_embedding or spec.selector is not None or spec.convolution is not None:
        yield "a drafter with more than version 1 has", "the layout has no embedding, convolutions or selector"
    if spec.windows_from_anchor:
        yield "a window counted from the anchor", "the layout counts it from each row"
    if spec.sample_from_anchor:
        yield "a drafter that samples from the anchor", "the layout drops the anchor's row"
