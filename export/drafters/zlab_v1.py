"""The z-lab DFlash v1 layout: config.json with `dflash_config`, safetensors weights, no embedding and no head.

What the keys mean follows PyPI `dflash` 0.1.0, except that nothing has a default there that decides acceptance here.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import BuildError, CheckpointError, UsageError

from ..checkpoint import DrafterCheckpoint
from ..files import FileHashes, names_architecture, read_json, section
from ..int8_source import open_tensors
from ..safetensors_source import WHOLE
from ..skeleton import check_shapes
from ..spec import DrafterSpec
from ._zlab_config import read_spec, write_config

if TYPE_CHECKING:
    import torch

SIGN = "a directory whose config.json says architectures: DFlashDraftModel"
TRAINED_WITH = "trained_with"
"""config key under which a training run records the hashes of the target's vocabulary and chat template"""


def recognise(path: Path) -> str | None:
    """Why `path` holds such a drafter, or None."""
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    alone = "speculators_model_type" not in config and "use_swa" not in section(config.get("dflash_config"))
    return "its architectures name DFlashDraftModel" if alone and names_architecture(config, "DFlashDraftModel") else None


def open_checkpoint(path: Path) -> DrafterCheckpoint:
    """The drafter in `path`. Raises `CheckpointError` for a missing or contradictory key and for missing, surplus or mis-shaped tensors."""
    raw = read_json(path / "config.json")
    tensors = open_tensors(path, raw)
    spec = read_spec(raw, path, tensors.dtype("fc.weight") if "fc.weight" in tensors.shapes() else "unknown")
    check_shapes(tensor_shapes(spec), tensors.shapes(), str(path))
    trained = section(raw.get(TRAINED_WITH))
    return DrafterCheckpoint(
        spec, tensors, path, FileHashes([path / "config.json", *tensors.paths]), trained.get("vocabulary_sha256"), trained.get("template_sha256")
    )


def tensor_shapes(spec: DrafterSpec, target_hidden: int | None = None) -> dict[str, tuple[int | None, ...]]:
    """Name and shape of every tensor. The width of `fc` is free unless `target_hidden` is given."""
    hidden, q, kv, inner = spec.hidden, spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.intermediate
    width = None if target_hidden is None else len(spec.taps) * target_hidden
    shapes: dict[str, tuple[int | None, ...]] = {"fc.weight": (hidden, width), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "self_attn.q_norm.weight": (spec.head_dim,),
        "self_attn.k_norm.weight": (spec.head_dim,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if spec.attention_bias:
        layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,), "self_attn.o_proj.bias": (hidden,)}
    return shapes | {f"layers.{index}.{name}": shape for index in range(spec.layers) for name, shape in layer.items()}


def save(
    spec: DrafterSpec,
    tensors: Mapping[str, torch.Tensor],
    folder: Path,
    extra_config: Mapping[str, Any] | None = None,
    *,
    extra_files: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Path:
    """Write a drafter that `open_checkpoint` and PyPI `dflash` both read. Staged beside `folder`, then renamed: never half there.

    `tensors` are exactly those of `tensor_shapes(spec)`, all of dtype `spec.dtype`; `extra_config` adds keys to config.json
    (`TRAINED_WITH`, for one) and `extra_files` are written beside it, by plain name.

    Raises `UsageError` when `folder` exists and `replace` is not set, `CheckpointError` when the tensors are not those of the
    spec, and `BuildError` when writing fails.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if folder.exists() and not replace:
        raise UsageError(
            "the output folder exists",
            where=str(folder),
            why="a drafter is never written over another by accident",
            fix="choose another folder, or ask to replace it",
        )
    _check_sayable(spec, folder)
    check_shapes(tensor_shapes(spec), {name: tuple(value.shape) for name, value in tensors.items()}, "the drafter to be saved")
    wrong = sorted(name for name, value in tensors.items() if str(value.dtype) != f"torch.{spec.dtype}")
    if wrong:
        raise CheckpointError(f"{len(wrong)} tensors are not {spec.dtype}", where="the drafter to be saved", why=", ".join(wrong[:3]), fix="cast them first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        save_file({name: tensors[name].contiguous() for name in sorted(tensors)}, stage / WHOLE, metadata={"format": "pt"})
        (stage / "config.json").write_text(json.dumps(write_config(spec) | dict(extra_config or {}), indent=2) + "\n")
        for name, content in (extra_files or {}).items():
            (stage / Path(name).name).write_bytes(content)
        stage.chmod(0o755)  # mkdtemp makes folders nobody else may read
        (stage / WHOLE).chmod(0o644)
        _swap(stage, folder)
    except (OSError, SafetensorError) as error:
        raise BuildError(
            "the drafter could not be written", where=str(folder), why=str(error), fix="check free space and permissions; nothing was left behind"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return folder


def _check_sayable(spec: DrafterSpec, folder: Path) -> None:
    """The layout has one window and one `is_causal` for all layers: refuse a spec it would not give back."""
    back = read_spec(write_config(spec), folder, spec.dtype)
    full = (None,) * spec.layers, (False,) * spec.layers
    said, meant = (back.windows, back.causal), (spec.windows or full[0], spec.causal or full[1])
    if said != meant or spec.target_layers is None:
        raise UsageError(
            "this drafter cannot be written in the z-lab v1 layout",
            where=str(folder),
            why="the layout needs the number of target layers, and has one window and one causality for all layers",
            fix="give target_layers, and windows and causality the layout can say",
        )


def _swap(stage: Path, folder: Path) -> None:
    """Put `stage` in the place of `folder`; a folder already there is moved aside first and removed last."""
    if not folder.exists():
        stage.rename(folder)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    folder.rename(aside / folder.name)
    try:
        stage.rename(folder)
    except OSError:
        (aside / folder.name).rename(folder)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
