"""What the drafter layouts that are a folder have in common: config.json beside safetensors, and how such a folder is
recognised and opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.checkpoint import DrafterCheckpoint, TensorSource
from ..checkpoints.drafter_folder import trained_with
from ..checkpoints.files import FileHashes, names_architecture, read_json, stated_dtype
from ..checkpoints.int8_source import open_tensors
from ..checkpoints.renamed_source import RenamedSource
from ..checkpoints.safetensors_source import DTYPES
from ..checkpoints.skeleton import check_shapes
from ..dflash.shapes import module_shapes
from ..dflash.vocabulary import DraftVocabulary
from ..parameter_names import EMBEDDING, HEAD
from ..spec import DrafterSpec

CONFIG = "config.json"
FC = "fc.weight"
"""the tensor whose dtype is the drafter's"""
Config = Mapping[str, Any]


def check_tensors(spec: DrafterSpec, tensors: TensorSource, config: Config, path: Path) -> None:
    """Raise `CheckpointError` unless `tensors`, found in `path`, are those of `spec`'s drafter."""
    check_shapes(tensor_shapes(spec, len(tensors.shapes()), str(path)), tensors.shapes(), str(path))


@dataclass(frozen=True)
class FolderLayout:
    """A drafter layout of config.json and safetensors."""

    evidence: Callable[[Config], str | None]
    """why this is the configuration of such a drafter, or None"""
    read_spec: Callable[[Config, Path, str], DrafterSpec]
    """the spec in the configuration of the drafter in a folder, whose tensors are stored as a dtype"""
    names: Mapping[str, str] = field(default_factory=dict)
    """stored name → that of the draft module, where they differ"""
    dtypes: Mapping[str, str] = field(default_factory=lambda: DTYPES)
    """those that tensors may have: safetensors' name → torch's"""
    check: Callable[[DrafterSpec, Any, Config, Path], DraftVocabulary | None] = check_tensors
    """raises `CheckpointError` unless the stored tensors are the spec's; gives the tokens that the drafter proposes,
    where they are some of the target's"""

    def recognise(self, path: Path) -> str | None:
        """Why `path` holds such a drafter, or None."""
        return self.evidence(read_json(path / CONFIG)) if (path / CONFIG).is_file() else None

    def specify(self, path: Path) -> DrafterSpec:
        """The spec in config.json alone. Raises `CheckpointError` as `open_checkpoint` does for its keys."""
        raw = read_json(path / CONFIG)
        return self.read_spec(raw, path, stated_dtype(raw))

    def open_checkpoint(self, path: Path) -> DrafterCheckpoint:
        """The drafter in `path`; of its weights only the headers are read.

        Raises `CheckpointError` for a missing, contradictory or unsupported key and for missing, surplus or mis-shaped
        tensors.
        """
        raw = read_json(path / CONFIG)
        plain = open_tensors(path, raw, self.dtypes)
        tensors = RenamedSource(plain, lambda name: self.names.get(name, name)) if self.names else plain
        spec = self.read_spec(raw, path, tensors.dtype(FC) if FC in tensors.shapes() else "unknown")
        vocabulary = self.check(spec, tensors, raw, path)
        files = FileHashes([path / CONFIG, *tensors.paths])
        return DrafterCheckpoint(spec, tensors, path, files, *trained_with(raw), vocabulary)


def named(architecture: str) -> Callable[[Config], str | None]:
    """The evidence of a layout whose configuration lists `architecture`."""
    return lambda config: f"its architectures name {architecture}" if names_architecture(config, architecture) else None


def tensor_shapes(spec: DrafterSpec, tensors: int, where: str) -> dict[str, tuple[int | None, ...]]:
    """Name and shape of every tensor of `spec`'s drafter; the width of `fc`, which the target decides, is None.

    Raises `CheckpointError` for sizes that no drafter of `tensors` tensors can have.
    """
    if spec.layers > tensors:  # asked before the module is built: a mistyped number would fill the memory even so
        raise CheckpointError(
            f"the configuration says {spec.layers} layers, the weights are {tensors} tensors",
            where=where,
            why="a layer has several tensors of its own",
            fix="check that config and weights are of the same drafter and revision, whole",
        )
    try:
        found = module_shapes(spec, len(spec.taps) * spec.hidden, spec.vocab or 1)
    except (RuntimeError, OverflowError, TypeError) as error:  # torch's, about sizes past what it can count
        raise CheckpointError(
            "no drafter has the sizes that the configuration says",
            where=where,
            why=str(error).splitlines()[0],
            fix="take config.json from the drafter's original repository",
        ) from None
    ends = {EMBEDDING: (spec.vocab, spec.hidden), HEAD: (spec.vocab, spec.hidden)} if spec.own_embedding else {}
    return {**found, FC: (spec.hidden, None), **ends}
