"""A target as one GGUF file: weights, configuration, tokenizer and chat template together."""

from __future__ import annotations

from pathlib import Path

from ..checkpoints.checkpoint import TargetCheckpoint
from ..checkpoints.files import FileHashes, visible
from ..checkpoints.skeleton import check_shapes, parameter_shapes
from ..checkpoints.target_spec import check_sizes, require_family, target_spec
from ..families import family_of
from ..gguf_format.config import read_config
from ..gguf_format.reading import GgufFile
from ..gguf_format.tensors import GgufSource, places_of
from ..gguf_format.text import read_text

SIGN = "a .gguf file, or a directory with exactly one and no config.json"
MAGIC = b"GGUF"


def recognise(path: Path) -> str | None:
    """Why `path` is a GGUF file (or a directory of just one), or None."""
    file = _file(path)
    if file is None:
        return None
    with file.open("rb") as head:
        return "it starts with GGUF" if head.read(len(MAGIC)) == MAGIC or file.suffix == ".gguf" else None


def open_checkpoint(path: Path) -> TargetCheckpoint:
    """The target in the GGUF file `path`.

    Raises `CheckpointError` for a damaged file, an unknown architecture or pre-tokenizer, metadata that would change
    the arithmetic in a way not understood, and tensors that do not fit the configuration.
    """
    file = GgufFile(_file(path) or path)
    architecture, config = read_config(file)
    require_family(config.model_type, str(file.path))
    check_sizes(config, len(file.tensors), str(file.path))
    wanted = parameter_shapes(family_of(config.model_type), config, str(file.path))
    places = places_of(architecture, config.num_hidden_layers, wanted)
    tensors = GgufSource(file, places, config.head_dim if architecture.INTERLEAVED_ROPE else None)
    check_shapes(wanted, tensors.shapes(), str(file.path))
    text, pad = read_text(file)
    spec = target_spec(config.model_type, config, file.path.stem, file.weight_type, text, pad, str(file.path))
    return TargetCheckpoint(spec, config, tensors, text, file.path, FileHashes([file.path]))


def _file(path: Path) -> Path | None:
    if path.is_file():
        return path
    found = visible(path, "*.gguf")
    return found[0] if len(found) == 1 and not (path / "config.json").exists() else None
