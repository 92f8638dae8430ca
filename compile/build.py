"""Build: target and drafter in, bundle out.

Open, pair, trace, lower, bind, write; each step refuses before the next one starts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.export.checkpoints.staging import check_output, staged
from dflash_compile.export.opening import open_drafter, open_target
from dflash_compile.export.tracing.graph import OWNERS
from dflash_compile.runtime.bundle.contract import check_contract
from dflash_compile.runtime.bundle.files import MANIFEST, check_files, sha256
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.bundle.vocabulary import STORED

from .backend import find_backend
from .manifest_records import TEMPLATE, TOKENIZER, TOOL_TEMPLATE, VOCABULARY, manifest_of
from .options import BuildOptions
from .pair_sizes import Models, decide
from .progress import Note, Progress, no_notes, no_progress
from .reuse import find_target

__all__ = ["BuildOptions", "build"]


def build(
    target: str | Path | TargetCheckpoint,
    drafter: str | Path | DrafterCheckpoint,
    output: str | Path,
    options: BuildOptions | None = None,
    progress: Progress = no_progress,
    note: Note = no_notes,
    target_from: str | Path | None = None,
) -> Path:
    """Write the bundle `output` of two checkpoints, given opened or by reference; returns its path.

    `target_from` is a bundle whose target engines are taken over instead of compiled: for several drafters of one
    target. `note` gets what is unusual about the pair or about this machine. Equal inputs and options give equal bytes.
    Memory stays near that of one chunk of weights, whatever the models' size; calibration adds one layer in float32 and
    what its texts have become. Raises `UsageError` for an output that must not be replaced, `CheckpointError` and
    `PairingError` for models that cannot be built, `IncompatibleError` and `BundleError` where `target_from` has other
    engines than this build's or is damaged, `BuildError` for a failure on the way; then nothing is left behind.
    """
    asked, place = options or BuildOptions(), Path(output)
    backend = find_backend(asked.backend)
    own = backend.Options.parse(asked)
    check_output(place, asked.force)
    progress("opening the models")
    opened = target if isinstance(target, TargetCheckpoint) else open_target(target)
    models = decide(opened, drafter if isinstance(drafter, DrafterCheckpoint) else open_drafter(drafter), asked)
    own = own.for_models(models)
    for warning in models.pairing.warnings:
        note(warning)
    reused = None if target_from is None else find_target(Path(target_from), models, own, backend.requires(models, own))
    prepared = backend.prepare(models, own, progress, OWNERS if reused is None else ("drafter",))
    with staged(place, prepared.bytes) as staging:
        graphs = dict(prepared.write(staging, progress))
        if reused is not None:
            reused.link_into(staging, progress)
            graphs["target"] = reused.graphs
        prepared.check(staging, progress, note)
        _write_text(models, staging)
        _write_vocabulary(models, staging)
        progress("hashing")
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        names = {path.relative_to(staging).as_posix(): path for path in files}
        hashes, sizes = (
            {name: sha256(path) for name, path in names.items()},
            {name: path.stat().st_size for name, path in names.items()},
        )
        if reused is not None:
            reused.check(hashes)
        manifest = manifest_of(
            models, asked, own, graphs, backend.requires(models, own), prepared.measured, hashes, sizes
        )
        (staging / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        _validate(staging)
        check_output(place, asked.force)  # another build may have been quicker
    return place


def _write_text(models: Models, staging: Path) -> None:
    text = models.target.text
    (staging / TOKENIZER).parent.mkdir()
    (staging / TOKENIZER).write_bytes(text.tokenizer_json)
    if text.chat_template is not None:
        (staging / TEMPLATE).write_bytes(text.chat_template.encode())
    if text.tool_template is not None:
        (staging / TOOL_TEMPLATE).write_bytes(text.tool_template.encode())


def _write_vocabulary(models: Models, staging: Path) -> None:
    if models.drafter.vocabulary is not None:
        (staging / VOCABULARY).write_bytes(np.array(models.drafter.vocabulary.ids, STORED).tobytes())


def _validate(staging: Path) -> None:
    """Read the bundle back by the code that loads bundles."""
    manifest = read_manifest(staging)
    check_contract(manifest)
    check_files(staging, manifest.files, manifest.sizes, "size")
