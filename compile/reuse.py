"""Target engines of a bundle that is there already, taken over into a new one.

Taken is only what this build would have made itself: the manifest must say that the same target was compiled in the
same way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_compile.runtime.bundle.contract import check_contract
from dflash_compile.runtime.bundle.files import check_files, confine
from dflash_compile.runtime.bundle.manifest import GraphRecord, Manifest, RequirementRecord
from dflash_compile.runtime.bundle.read import read_manifest
from dflash_compile.runtime.errors import BundleError, IncompatibleError

from .backend_options import BackendOptions
from .manifest_records import tool
from .pair_sizes import Models
from .progress import Progress

_OPTION = "--target-from"


@dataclass(frozen=True)
class ReusedTarget:
    """A bundle whose target engines fit a build."""

    root: Path
    manifest: Manifest

    @property
    def graphs(self) -> list[GraphRecord]:
        """How to call the target's engines."""
        return list(self.manifest.target.graphs)

    @property
    def files(self) -> dict[str, str]:
        """sha256 of each of the target's engine files, by relative path."""
        folders = {graph.file.partition("/")[0] for graph in self.manifest.target.graphs}
        return {name: digest for name, digest in self.manifest.files.items() if name.partition("/")[0] in folders}

    def link_into(self, staging: Path, progress: Progress) -> None:
        """Put the engine files into `staging`: as hard links where the file system allows it, else as copies."""
        for number, name in enumerate(self.files):
            progress("taking over the target", number, len(self.files))
            place = staging / name
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(confine(self.root, name).resolve(), place)

    def check(self, hashes: Mapping[str, str]) -> None:
        """Raises `BundleError` where a file taken over is not what that bundle's manifest says, by its sha256 in
        `hashes`.
        """
        for name, digest in self.files.items():
            if hashes.get(name) != digest:
                raise BundleError(
                    f"{name} is not the file that was built",
                    where=str(self.root),
                    why="its sha256 differs from the manifest's",
                    fix=f"build that bundle again, or leave out {_OPTION}",
                )


def find_target(bundle: Path, models: Models, options: BackendOptions, requires: RequirementRecord) -> ReusedTarget:
    """The bundle at `bundle`, whose target engines are those that these models and options call for.

    `requires` is what the build's own engines need. Raises `UsageError` and `BundleError` for what is no bundle or a
    damaged one (hashes come later, as the files are read anyway), and `IncompatibleError` saying everything that
    differs.
    """
    manifest = read_manifest(bundle)
    check_contract(manifest)
    check_files(bundle, manifest.files, manifest.sizes, "size")
    differences = list(_differences(manifest, models, options, requires))
    if differences:
        raise IncompatibleError(
            "that bundle's target engines are not those of this build",
            where=f"{_OPTION} {bundle}",
            why="; ".join(differences),
            fix=f"build with what that bundle has, or leave out {_OPTION}",
        )
    return ReusedTarget(bundle, manifest)


def _differences(
    manifest: Manifest, models: Models, options: BackendOptions, requires: RequirementRecord
) -> Iterator[str]:
    target = manifest.target
    static = any(graph.rows is not None for graph in target.graphs)
    pairs: dict[str, tuple[object, object]] = {
        "tool": (manifest.created_by, tool()),
        "back-end": (manifest.requires, requires),
        "precision of the target": (target.precision, options.precision),
        **options.differences(manifest),
        "context": (manifest.context, models.context),
        "taps": (manifest.pairing.taps, list(models.pairing.drafter.taps)),
        # Graphs of free width serve every block.
        "block": (manifest.pairing.block, models.block) if static else (None, None),
    }
    yield from (
        f"{name}: {_words(there)} there, {_words(here)} here" for name, (there, here) in pairs.items() if there != here
    )
    yield from _other_files(target.sources, models.target.files)


def _other_files(there: Mapping[str, str], here: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            yield f"target file {name}: " + (
                "another one" if name in there and name in here else "only there" if name in there else "only here"
            )


def _words(value: object) -> str:
    return f"{value.package} {value.built_with}" if isinstance(value, RequirementRecord) else str(value)


def _link(source: Path, place: Path) -> None:
    try:
        os.link(source, place)
    except OSError:
        # Another disk, a file system without links, or files of somebody else. Copies are ours: they take no
        # permissions along.
        shutil.copyfile(source, place)
