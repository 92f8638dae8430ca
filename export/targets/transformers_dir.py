"""A target as a transformers directory: config.json, safetensors weights, tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from dflash_compile.runtime.errors import CheckpointError

from ..checkpoints.checkpoint import TargetCheckpoint
from ..checkpoints.experts_source import ExpertsSource
from ..checkpoints.files import FileHashes, read_json, section
from ..checkpoints.renamed_source import RenamedSource, by_prefix
from ..checkpoints.safetensors_source import SafetensorsSource
from ..checkpoints.skeleton import TOLERATED, check_shapes, parameter_shapes
from ..checkpoints.target_spec import check_sizes, require_family, rope_base, target_spec
from ..checkpoints.text import pad_token, read_text
from ..families import TEXT, Family, family_of
from ..parameter_names import EMBEDDING, HEAD

SIGN = "a directory with a config.json that says model_type"
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "rms_norm_eps",
)
"""transformers has a default for each of these, and every default is some other model's value"""
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")
Stored = SafetensorsSource | RenamedSource | ExpertsSource
HEAD_CHUNK = 4096
"""rows compared at a time where a checkpoint stores a tied head"""


def recognise(path: Path) -> str | None:
    """Why `path` is such a directory, or None."""
    if not (path / "config.json").is_file():
        return None
    return "its config.json says model_type" if "model_type" in read_json(path / "config.json") else None


def open_checkpoint(path: Path) -> TargetCheckpoint:
    """The target in `path`.

    Raises `CheckpointError` when a file or key is missing, or the weights are not the configuration's.
    """
    file = path / "config.json"
    kind, config, quantised = read_config(file)
    if quantised:
        raise CheckpointError(
            "this model is already quantised",
            where=f"{file}: quantization_config",
            why="only plain float weights are read from safetensors",
            fix="use the unquantised checkpoint; quantisation happens in the build",
        )
    family = family_of(kind)
    tensors = _tensors(path, family)
    tensors.drop([name for name in tensors.shapes() if name.endswith(TOLERATED)])
    if config.tie_word_embeddings and HEAD in tensors.shapes():
        _check_tied(tensors, path)
        tensors.drop([HEAD])
    check_sizes(config, len(tensors.shapes()), str(file))
    check_shapes(parameter_shapes(family, config, str(file)), tensors.shapes(), str(path))
    text, text_files = read_text(path)
    spec = target_spec(kind, config, path.name, tensors.dtype(EMBEDDING), text, pad_token(path), str(path))
    return TargetCheckpoint(spec, config, tensors, text, path, FileHashes([file, *tensors.paths, *text_files]))


def read_config(file: Path) -> tuple[str, PreTrainedConfig, bool]:
    """Family, configuration of the text decoder, and whether the weights are quantised, by the configuration in `file`.

    Raises `CheckpointError` for a family that is not known and for keys that are missing or refused by transformers.
    """
    raw = read_json(file)
    _check_raw(raw, file)
    kind = str(raw["model_type"])
    family = family_of(kind)
    config = _config(file) if family.decoder is None else family.decoder(_config(file))
    text = raw if family.decoder is None else section(raw.get(TEXT))
    for key in SPECIAL:  # what the file leaves out is no token, whatever the class has for a default
        setattr(config, key, raw.get(key) if text.get(key) is None else text[key])
    return kind, config, "quantization_config" in raw


def _check_raw(raw: Mapping[str, Any], where: Path) -> None:
    if "auto_map" in raw:
        raise CheckpointError(
            "this model brings its own Python code",
            where=f"{where}: auto_map",
            why="code from a checkpoint is never run",
            fix="if transformers has the family built in, delete auto_map from a copy of config.json and open that",
        )
    if not isinstance(raw.get("model_type"), str):
        raise CheckpointError(
            f"model_type cannot be {raw.get('model_type')!r:.60}",
            where=f"{where}: model_type",
            why="it names the family of the model",
            fix="take config.json from the model's original repository",
        )
    require_family(str(raw["model_type"]), str(where))
    family = family_of(str(raw["model_type"]))
    nested = family.decoder is not None
    text = section(raw.get(TEXT)) if nested else raw
    missing = [key for key in REQUIRED if text.get(key) is None]
    if text.get("rope_theta") is None and rope_base(section(text.get("rope_parameters"))) is None:
        missing.append("rope_theta")
    missing = [f"{TEXT}.{key}" if nested else key for key in missing if key not in family.omitted]
    if missing:
        raise CheckpointError(
            f"the configuration lacks {', '.join(missing)}",
            where=str(where),
            why="a default would be some other model's value, and the output would be wrong without a sign of it",
            fix="take config.json from the model's original repository",
        )


def _config(file: Path) -> PreTrainedConfig:
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(file, trust_remote_code=False, local_files_only=True)
        return config
    except Exception as error:  # config classes validate with errors of many types
        raise CheckpointError(
            "transformers does not accept the configuration",
            where=str(file),
            why=str(error),
            fix="take config.json from the model's original repository",
        ) from None


def _tensors(path: Path, family: Family) -> Stored:
    """The weights in `path` under the names of the family's text decoder."""
    plain = SafetensorsSource(path)
    named = RenamedSource(plain, by_prefix(family.stored)) if family.stored else plain
    return ExpertsSource(named) if family.experts_apart else named


def _check_tied(tensors: Stored, path: Path) -> None:
    """The config says the head is the embedding: a stored head must then be equal to it."""
    rows = tensors.shapes()[EMBEDDING][0]
    equal = tensors.shapes()[HEAD] == tensors.shapes()[EMBEDDING] and all(
        tensors.rows(HEAD, start, min(start + HEAD_CHUNK, rows)).equal(
            tensors.rows(EMBEDDING, start, min(start + HEAD_CHUNK, rows))
        )
        for start in range(0, rows, HEAD_CHUNK)
    )
    if not equal:
        raise CheckpointError(
            "the stored output head is not the embedding, though the configuration says they are tied",
            where=f"{path / 'config.json'}: tie_word_embeddings",
            why=f"{HEAD} and {EMBEDDING} differ",
            fix="set tie_word_embeddings to false if the head was trained apart",
        )
