"""`inspect`: what is in a bundle or a checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..console import Console
from ..report import Report


def command(
    console: Console, path: Annotated[str, typer.Argument(metavar="PATH", help="A bundle, a target or drafter checkpoint, or the name of a packaged model.")]
) -> Report:
    """Show what PATH holds: a bundle's manifest, its files checked, or a checkpoint's specification."""
    # A directory with a manifest is a bundle, even a damaged one: reading it as a checkpoint would hide the damage.
    document = _bundle(Path(path)) if (Path(path) / "manifest.json").is_file() else _checkpoint(path)
    return Report(document, list(_lines(document)))


def _bundle(path: Path) -> dict[str, Any]:
    import msgspec

    from dflash_compile.runtime.bundle.read import open_bundle

    bundle = open_bundle(path)
    return {"kind": "bundle", "notes": list(bundle.notes), "manifest": msgspec.to_builtins(bundle.manifest)}


def _checkpoint(reference: str) -> dict[str, Any]:
    from dflash_compile.export import drafters, open_drafter, open_target, registry
    from dflash_compile.export.references import locate

    path = locate(reference)
    layouts = [registry.load(drafters.__name__, name) for name in registry.names(drafters.__name__)]
    kind = "drafter" if any(layout.recognise(path) for layout in layouts) else "target"
    checkpoint = open_drafter(path) if kind == "drafter" else open_target(path)
    return {"kind": kind, "path": str(checkpoint.path), "spec": asdict(checkpoint.spec), "files": dict(checkpoint.files)}


def _lines(value: Any, name: str = "", depth: int = 0) -> Any:
    """The document as indented `name: value` lines."""
    margin = "  " * depth
    if isinstance(value, dict) and value:
        if name:
            yield f"{margin}{name}:"
        for key, item in value.items():
            yield from _lines(item, str(key), depth + bool(name))
    elif isinstance(value, list | tuple) and value and not isinstance(value[0], int | float | str):
        yield f"{margin}{name}:"
        for number, item in enumerate(value):
            yield from _lines(item, f"{number}", depth + 1)
    else:
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        yield f"{margin}{name}: {'–' if shown is None or shown == '' else shown}"
