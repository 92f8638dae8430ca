"""What configurations alone say of a target and of a drafter: enough to plan a build, with no weights and no tokenizer
there.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import CheckpointError

from .checkpoints.references import locate
from .checkpoints.skeleton import built_without_memory, shapes_of
from .checkpoints.target_spec import target_sizes
from .families import family_of
from .opening import open_drafter, open_target, reading
from .registry import the_one_for
from .spec import DrafterSpec, TargetSpec
from .targets.transformers_dir import read_config
from .tracing.experts import has_sparse_form
from .tracing.rope import rotary_kinds
from .tracing.windows import layer_windows

CONFIG = "config.json"


@dataclass(frozen=True)
class TargetOutline:
    """A target without its weights."""

    spec: TargetSpec
    """token ids of its text side are left out"""
    shapes: Mapping[str, tuple[int, ...]]
    """of every parameter; a tied head is not among them"""
    windows: tuple[int | None, ...]
    """per layer: sliding window in tokens, or None for full attention"""
    config: Any
    """transformers' configuration of the text decoder"""
    rotary_kinds: int
    """kinds of layers that turn by tables of their own"""
    sparse_experts: bool = False
    """its mixtures of experts, if it has any, have a sparse form"""
    notes: tuple[str, ...] = ()


def outline_target(reference: str | Path) -> TargetOutline:
    """The target at `reference`: a directory with a config.json, such a file by any name, a GGUF file, or the name of a
    packaged model.

    Reads neither weights nor tokenizer. Raises `UsageError` when there is nothing there and `CheckpointError` for a
    configuration that cannot be used.
    """
    path = locate(reference)
    file = path / CONFIG if path.is_dir() else path
    if file.suffix != ".json":
        checkpoint = open_target(path)
        return _outline(checkpoint.spec, checkpoint.config, ())
    with reading(path):
        return _outline_file(path, file)


def _outline_file(path: Path, file: Path) -> TargetOutline:
    family, config, quantised = read_config(file)
    name = path.stem if path.is_file() and path.name != CONFIG else file.parent.name
    notes = ("the configuration is that of a quantised checkpoint; a build reads plain floats",) if quantised else ()
    return _outline(
        target_sizes(family, config, name, str(config.dtype or "unknown").removeprefix("torch."), str(file)),
        config,
        notes,
    )


def _outline(spec: TargetSpec, config: Any, notes: tuple[str, ...]) -> TargetOutline:
    model = built_without_memory(family_of(spec.family), config, spec.name)
    kinds = rotary_kinds(type(model.get_decoder().rotary_emb), config)
    return TargetOutline(spec, shapes_of(model, config), layer_windows(model), config, kinds, _sparse(model), notes)


def _sparse(model: Any) -> bool:
    mixtures = [module for module in model.modules() if hasattr(module, "has_post_expert_norm")]
    return bool(mixtures) and all(map(has_sparse_form, mixtures))


def outline_drafter(reference: str | Path) -> DrafterSpec:
    """The drafter whose configuration is at `reference`: a directory, a config.json by any name, or a GGUF file.

    Raises `UsageError` when there is nothing there and `CheckpointError` for a configuration that cannot be used.
    """
    path = locate(reference)
    with reading(path):
        if path.is_file() and path.suffix == ".json":
            return _specify(path.parent) if path.name == CONFIG else _specify_file(path)
        return open_drafter(path).spec if path.is_file() else _specify(path)


def _specify(folder: Path) -> DrafterSpec:
    spec: DrafterSpec = the_one_for(f"{__package__}.drafters", folder, "drafter").specify(folder)
    return spec


def _specify_file(file: Path) -> DrafterSpec:
    """Layouts are recognised in folders: the file gets one for a moment, which no error names."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / file.stem
        folder.mkdir()
        (folder / CONFIG).write_bytes(file.read_bytes())
        try:
            return _specify(folder)
        except CheckpointError as error:
            named = {
                key: str(value or "").replace(str(folder), str(file))
                for key, value in (("where", error.where), ("why", error.why), ("fix", error.fix))
            }
            raise CheckpointError(error.what, **named) from None
