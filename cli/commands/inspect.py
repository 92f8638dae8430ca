"""`inspect`: what is in a bundle or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console import Console
from ..report import Report

if TYPE_CHECKING:
    from dflash_compile.runtime.bundle.manifest import Manifest, ModelRecord, PlanRecord


def command(
    console: Console,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A bundle, a target or drafter checkpoint, or the name of a packaged model."
        ),
    ],
) -> Report:
    """Show what PATH holds: a bundle, with every file checked, or a checkpoint's specification.

    --json shows all of it.
    """
    # A directory with a manifest is a bundle, even a damaged one: reading it as a checkpoint would hide the damage.
    return _bundle(Path(path)) if (Path(path) / "manifest.json").is_file() else _checkpoint(path, console.json)


def _bundle(path: Path) -> Report:
    import msgspec

    from dflash_compile.runtime.bundle.read import open_bundle
    from dflash_compile.runtime.requirements import check_requirements

    bundle = open_bundle(path, check=check_requirements)
    document = {
        "kind": "bundle",
        "path": str(path),
        "notes": list(bundle.notes),
        "manifest": msgspec.to_builtins(bundle.manifest),
    }
    return Report(
        document,
        [
            *_table(_bundle_rows(bundle.manifest)),
            *(f"note: {note}" for note in bundle.notes),
            "every file is what was built",
        ],
    )


def _checkpoint(reference: str, hashes: bool) -> Report:
    """Only with `hashes` are all files read: their sha256 is then in the document."""
    from dflash_compile.export import drafters, open_drafter, open_target, registry
    from dflash_compile.export.checkpoints.checkpoint import TargetCheckpoint
    from dflash_compile.export.checkpoints.generation import greedy_note
    from dflash_compile.export.checkpoints.references import locate

    path = locate(reference)
    layouts = [registry.load(drafters.__name__, name) for name in registry.names(drafters.__name__)]
    kind = "drafter" if any(layout.recognise(path) for layout in layouts) else "target"
    checkpoint = open_drafter(path) if kind == "drafter" else open_target(path)
    spec = asdict(checkpoint.spec)
    evidence = spec.get("evidence", {})
    shown = {name: _found(value, evidence.get(name)) for name, value in spec.items() if name != "evidence"}
    document = {
        "kind": kind,
        "path": str(checkpoint.path),
        "spec": spec,
        "files": dict(checkpoint.files) if hashes else {},
    }
    remark = greedy_note(checkpoint.text.generation) if isinstance(checkpoint, TargetCheckpoint) else None
    notes = [] if remark is None else [remark]
    lines = _table({"kind": kind, "path": str(checkpoint.path), **shown})
    return Report(document | {"notes": notes}, [*lines, *(f"note: {note}" for note in notes)])


def _found(value: Any, where: str | None) -> Any:
    """A field's value with the key or rule it was read from, where that is known."""
    return value if where is None else f"{_words(value)}  [{where}]"


def _bundle_rows(manifest: Manifest) -> dict[str, Any]:
    return (
        {
            "kind": f"bundle, format version {manifest.version}, {manifest.created_by}",
            "target": _model(manifest.target),
            "drafter": _model(manifest.drafter),
            "block": f"{manifest.pairing.block} rows, mask token {manifest.pairing.mask_id}",
            "proposes": _proposed(manifest),
            "draft": _passes(manifest.config.get("refine")),
            "taps": manifest.pairing.taps,
            "context": f"{manifest.context} tokens",
            "chat template": (
                "in the bundle" if manifest.text.chat_template else "none: prompts are continued as they stand"
            ),
            "thinking": _thinking(manifest),
            "runs on": _platform(manifest),
            "files": f"{len(manifest.files)}, {sum(manifest.sizes.values()) / 2**20:.1f} MiB",
        }
        | _parts(manifest)
        | _plans(manifest)
        | {measured.name: f"{measured.value:g} {measured.unit} ({measured.how})" for measured in manifest.measured}
    )


def _platform(manifest: Manifest) -> str:
    requires = manifest.requires
    versions = requires.minimum if requires.maximum == requires.minimum else f"{requires.minimum} or later"
    kinds = sorted(
        {graph.arch for model in (manifest.target, manifest.drafter) for graph in model.graphs if graph.arch}
    )
    return f"{requires.backend}: {requires.package} {versions}, checked with {requires.built_with}" + (
        f", on {', '.join(kinds)}" if kinds else ""
    )


def _parts(manifest: Manifest) -> dict[str, str]:
    """The engines of models that are cut by layers, a row each, in the order in which they run."""
    from dflash_compile.runtime.bundle.parts import engines

    rows: dict[str, str] = {}
    for model in (manifest.target, manifest.drafter):
        for graph in (engine.graphs[0] for engine in engines(model)):
            if graph.part is not None:
                size = sum(size for name, size in manifest.sizes.items() if name.startswith(f"{graph.file}/"))
                taps = f", taps {_words(graph.part.taps)}" if graph.part.taps else ""
                rows[graph.file] = (
                    f"part {graph.part.number + 1} of {graph.part.count}: layers {_words(graph.part.layers)}{taps},"
                    f" {size / 2**20:.1f} MiB"
                )
    return rows


def _plans(manifest: Manifest) -> dict[str, str]:
    """What compiled engines say of themselves, a row each."""
    graphs = [graph for model in (manifest.target, manifest.drafter) for graph in model.graphs]
    return {f"{graph.role}[{graph.rows}] {graph.arch}": _plan(graph.plan) for graph in graphs if graph.plan is not None}


def _plan(plan: PlanRecord) -> str:
    told = {
        "kernels": plan.kernels,
        "with fused attention": plan.fused_attention,
        "layers with attention in several kernels": plan.split_attention or None,
        "copying a cache": plan.cache_copies,
        "MiB of scratch": None if plan.scratch_bytes is None else round(plan.scratch_bytes / 2**20, 1),
    }
    known = [f"{value} {name}" for name, value in told.items() if value is not None]
    capture = [] if plan.capturable is None else ["capturable" if plan.capturable else "not capturable"]
    return ", ".join([f"{plan.bytes / 2**20:.1f} MiB", *(known or ["its format is not known here"]), *capture])


def _proposed(manifest: Manifest) -> str:
    reduced = manifest.pairing.draft_vocabulary
    return "any token" if reduced is None else f"{reduced.size} of {manifest.target.vocab} tokens"


def _thinking(manifest: Manifest) -> str:
    record, words = manifest.pairing.thinking, {True: "on", False: "off"}
    if record is None:
        return "no switch in the chat template" if manifest.text.chat_template else "no chat template"
    default = "neither on nor off" if record.default is None else words[record.default]
    learned = (
        "is not said to be trained on either"
        if record.drafter is None
        else f"was trained with it {words[record.drafter]}"
    )
    return f"switched by {record.variable}, {default} where that is not set; the drafter {learned}"


def _passes(refine: object) -> str:
    return (
        f"{refine + 1} passes, each over the proposals the last was least sure of"
        if isinstance(refine, int) and refine
        else "one pass"
    )


def _model(model: ModelRecord) -> str:
    return (
        f"{model.name} ({model.family}, {model.layers} layers, {model.hidden} wide, vocabulary {model.vocab},"
        f" {model.precision})"
    )


def _table(rows: Mapping[str, Any]) -> list[str]:
    width = max(map(len, rows)) + 2
    return [f"{name:<{width}}{_words(value)}" for name, value in rows.items()]


def _words(value: Any) -> str:
    if value is None or value in ("", (), [], {}):
        return "–"
    return ", ".join(map(_words, value)) if isinstance(value, list | tuple) else str(value)
