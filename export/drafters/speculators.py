"""The layout of PyPI `speculators`: a nested layer configuration, taps counted from the embedding and, where the
drafter proposes only some of the target's tokens, its own head and two maps.

Followed as version 0.9.0 writes and reads it. Its copies of the target's embedding, head and norm, which it reads again
from the target, are not used here either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_compile.runtime.errors import CheckpointError, UsageError

from ..checkpoints.drafter_folder import check_dtypes, refuse_existing, write_folder
from ..checkpoints.int8_source import Int8Source
from ..checkpoints.safetensors_source import DTYPES, SafetensorsSource
from ..checkpoints.skeleton import check_shapes
from ..dflash.vocabulary import DELTAS, MEMBERS, DraftVocabulary, vocabulary_of
from ..parameter_names import HEAD
from ..spec import DrafterSpec
from ._layout import FolderLayout, tensor_shapes
from ._speculators_config import head_from_target, read_spec, write_config
from ._speculators_keys import TARGET_HEAD

if TYPE_CHECKING:
    import torch

SIGN = "a directory whose config.json says speculators_model_type: dflash"
MAPS = (DELTAS, MEMBERS)
TARGETS_OWN = ("embed_tokens.weight", "verifier_norm.weight", "verifier_lm_head.weight")
"""tensors that a checkpoint may repeat from the target"""


def _evidence(config: Mapping[str, Any]) -> str | None:
    dflash = config.get("speculators_model_type") == "dflash"
    return "its speculators_model_type is dflash" if dflash else None


def _check(
    spec: DrafterSpec, tensors: SafetensorsSource | Int8Source, raw: Mapping[str, Any], path: Path
) -> DraftVocabulary | None:
    """The tokens that the maps name; the maps and what the target gives are dropped.

    Raises `CheckpointError` for tensors that are not the spec's, and for maps that name no tokens of the target or
    contradict each other.
    """
    # The package loads these from the target, whatever a checkpoint says.
    unused = (*TARGETS_OWN, HEAD) if spec.draft_vocab is None else TARGETS_OWN
    tensors.drop([name for name in unused if name in tensors.shapes()])
    shared = head_from_target(raw, path)
    if shared and HEAD in tensors.shapes():
        raise CheckpointError(
            f"{TARGET_HEAD} is set but {HEAD} is there",
            where=str(path),
            why="only one of them can be the head",
            fix=f"remove {TARGET_HEAD} from config.json",
        )
    found = tensors.shapes()
    check_shapes(_shapes(spec, shared, len(found), str(path)), found, str(path))
    _check_kinds(tensors, path)
    vocabulary = None if spec.draft_vocab is None else _vocabulary(tensors, path)
    tensors.drop([name for name in MAPS if name in tensors.shapes()])
    return vocabulary


LAYOUT = FolderLayout(_evidence, read_spec, dtypes={**DTYPES, "I64": "int64", "BOOL": "bool"}, check=_check)
recognise, open_checkpoint, specify = LAYOUT.recognise, LAYOUT.open_checkpoint, LAYOUT.specify


def save(
    spec: DrafterSpec,
    tensors: Mapping[str, torch.Tensor],
    vocabulary: DraftVocabulary | None,
    folder: Path,
    extra_config: Mapping[str, Any] | None = None,
    *,
    extra_files: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Path:
    """Write a drafter that `open_checkpoint` reads, and PyPI `speculators` too. Staged beside `folder`, then renamed:
    never half there.

    `tensors`, all of dtype `spec.dtype`, are those of the draft module and, with a reduced `vocabulary`, its
    `lm_head.weight` [draft_vocab, H]. Without that head the file stays small: config.json then says that the head is
    the target's rows for those tokens (`TARGET_HEAD`), which the package, too, takes from the target when it is told
    where that is. `extra_config` adds keys to config.json and `extra_files` are written beside it, by plain name.

    Raises `UsageError` when `folder` exists and `replace` is not set or the layout cannot say `spec`, `CheckpointError`
    when the tensors are not those of the spec, and `BuildError` when writing fails.
    """
    refuse_existing(folder, replace)
    _check_representable(spec, vocabulary, folder)
    shared = vocabulary is not None and HEAD not in tensors
    check_dtypes(tensors, spec.dtype)
    stored = dict(tensors) if vocabulary is None else {**tensors, **vocabulary.tensors()}
    found, where = {name: tuple(value.shape) for name, value in stored.items()}, "the drafter to be saved"
    check_shapes(_shapes(spec, shared, len(found), where), found, where)
    return write_folder(folder, write_config(spec, shared) | dict(extra_config or {}), stored, extra_files or {})


def _shapes(spec: DrafterSpec, head_from_target: bool, tensors: int, where: str) -> dict[str, tuple[int | None, ...]]:
    """Name and shape of every stored tensor. Raises as `tensor_shapes` does."""
    shapes = tensor_shapes(spec, tensors, where)
    if spec.draft_vocab is None:
        return shapes
    head: dict[str, tuple[int | None, ...]] = {} if head_from_target else {HEAD: (spec.draft_vocab, spec.hidden)}
    return {**shapes, **head, DELTAS: (spec.draft_vocab,), MEMBERS: (spec.vocab,)}


def _check_kinds(tensors: SafetensorsSource | Int8Source, path: Path) -> None:
    kinds = {DELTAS: "int64", MEMBERS: "bool"}
    for name in tensors.shapes():
        found, wanted = tensors.dtype(name), kinds.get(name)
        if found != wanted if wanted else found not in DTYPES.values():
            raise CheckpointError(
                f"tensor {name} is stored as {found}",
                where=str(path),
                why=f"it must be {wanted or 'a plain float'}",
                fix="copy or download the drafter again",
            )


def _vocabulary(tensors: SafetensorsSource | Int8Source, path: Path) -> DraftVocabulary:
    deltas, members = (tensors.rows(name, 0, tensors.shapes()[name][0]) for name in MAPS)
    return vocabulary_of(deltas, members, str(path))


def _check_representable(spec: DrafterSpec, vocabulary: DraftVocabulary | None, folder: Path) -> None:
    """The layout counts windows from the anchor, has one of them, and full layers that look both ways."""
    full = (None,) * spec.layers, (False,) * spec.layers
    windows, causal = spec.windows or full[0], spec.causal or full[1]
    sliding = {(window, ahead) for window, ahead in zip(windows, causal, strict=True) if window is not None}
    full_causal = any(ahead for window, ahead in zip(windows, causal, strict=True) if window is None)
    more = spec.own_embedding or spec.selector is not None or spec.convolution is not None
    scaled = (spec.embedding_scale, spec.output_multiplier, spec.logit_softcap) != (1.0, 1.0, None)
    if more or scaled:
        raise UsageError(
            "this drafter cannot be written in the speculators layout",
            where=str(folder),
            why=(
                "the layout has no embedding of the drafter's own, no convolutions or selector, and no factors on"
                " embeddings and logits"
            ),
            fix="write it in the z-lab v1 layout, where it is of that kind",
        )
    if len(sliding) > 1 or full_causal or (sliding and not spec.windows_from_anchor):
        raise UsageError(
            "this drafter cannot be written in the speculators layout",
            where=str(folder),
            why="its full layers always look both ways, and it has one window, counted from the anchor",
            fix="write it in the z-lab v1 layout",
        )
    size = None if vocabulary is None else len(vocabulary.ids)
    if size != spec.draft_vocab or (vocabulary is not None and vocabulary.vocab != spec.vocab):
        raise UsageError(
            "the vocabulary is not that of the spec",
            where=str(folder),
            why=f"{size} tokens, and the spec says {spec.draft_vocab}",
        )
