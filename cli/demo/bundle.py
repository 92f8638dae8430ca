"""The demo's bundle: built when it is not there, or when anything it is made from has changed."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from dflash_compile.artifacts import ROOT
from dflash_compile.compile.build import BuildOptions, build
from dflash_compile.compile.progress import Note, no_notes
from dflash_compile.export import open_drafter, open_target
from dflash_compile.export.checkpoints.checkpoint import DrafterCheckpoint, TargetCheckpoint
from dflash_compile.runtime.bundle.read import open_bundle
from dflash_compile.runtime.errors import DFlashError
from dflash_compile.runtime.requirements import check_requirements

from ..progress import ProgressDisplay

TARGET = "smollm2-135m"
DRAFTER = ROOT / "smollm2-135m-dflash"
MAKERS = ("compile", "export", "runtime.bundle")
"""packages whose code decides what a bundle holds"""


def ensure_bundle(output: Path, options: BuildOptions, progress: ProgressDisplay, note: Note = no_notes) -> bool:
    """Have the demo's bundle at `output`; True when it had to be built.

    A key over the sources, the options and the code that builds is kept beside the bundle, in `NAME.key`. Raises what
    `build` raises.
    """
    progress("opening the models")
    target, drafter = open_target(TARGET), open_drafter(DRAFTER)
    key_file, key = output.with_name(f"{output.name}.key"), _key(target, drafter, options)
    if key_file.is_file() and key_file.read_text(encoding="utf-8").strip() == key and _is_sound(output):
        return False
    key_file.unlink(missing_ok=True)
    build(target, drafter, output, options, progress, note)
    key_file.write_text(key + "\n", encoding="utf-8")
    return True


def _key(target: TargetCheckpoint, drafter: DrafterCheckpoint, options: BuildOptions) -> str:
    sources = {"target": dict(target.files), "drafter": dict(drafter.files)}
    parts = {"sources": sources, "options": asdict(options), "version": version("dflash-compile"), "code": _code()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _code() -> str:
    digest = hashlib.sha256()
    for name in MAKERS:
        folder = Path(next(iter(import_module(f"dflash_compile.{name}").__path__)))
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _is_sound(bundle: Path) -> bool:
    try:
        open_bundle(bundle, check=check_requirements)
    except DFlashError:
        return False
    return True
