"""The target engine of a bundle, opened to make training data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dflash_compile.runtime.errors import IncompatibleError, PairingError

if TYPE_CHECKING:
    from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
    from dflash_compile.train.compiled_target import CompiledTarget


def open_compiled_target(
    bundle: Path, target: TargetCheckpoint, taps: tuple[int, ...] | None = None, threads: int | None = None
) -> CompiledTarget:
    """The compiled form of `target` in `bundle`, for many sequences at once, on `threads` CPU threads (None: every
    core).

    Raises `PairingError` where the bundle was built from another target or hands out other `taps` (None: any),
    `IncompatibleError` where its engines cannot run here or take no batch, and what opening a bundle raises.
    """
    from dflash_compile.compile.backend_folders import backend_module, backend_names
    from dflash_compile.runtime.bundle.read import open_bundle
    from dflash_compile.runtime.requirements import check_requirements
    from dflash_compile.train.compiled_target import CompiledTarget

    opened = open_bundle(bundle, check=check_requirements)
    manifest = opened.manifest
    backend = manifest.requires.backend
    if backend not in (able := backend_names("batching")):
        raise IncompatibleError(
            f"a bundle for {backend}", where=str(bundle), fix=f"give one built with --backend {' or '.join(able)}"
        )
    if manifest.target.sources != dict(target.files):
        raise PairingError(
            f"this bundle was not built from {target.spec.name} as it is now",
            where=str(bundle),
            why="the hashes of its sources differ",
            fix="build the bundle again from this target",
        )
    if taps is not None and tuple(manifest.pairing.taps) != taps:
        raise PairingError(
            f"the bundle hands out the layers {manifest.pairing.taps}, the drafter reads {list(taps)}",
            where=str(bundle),
            fix=(
                "give a bundle built with a drafter of the same taps, or train a drafter with --taps"
                f" {','.join(map(str, manifest.pairing.taps))}"
            ),
        )
    (file,) = (graph.file for graph in manifest.target.graphs)
    graph = opened.file(file)
    batched = backend_module(backend, "batching", "target that takes a batch").batched_target
    identity = f"{manifest.target.precision} {manifest.files[f'{file}.data'][:16]}"
    return CompiledTarget(batched(graph), graph.parent, manifest.context, identity, threads)
