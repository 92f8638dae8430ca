"""Engines by the names of their files."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from peer import Peer

ENGINES = Path(__file__).parent / "engines"
OURS = Path(__file__).parent / "ours.py"


def engine_files(folder: Path = ENGINES) -> dict[str, Path]:
    """Every engine in `folder`, by name, sorted."""
    return {file.stem: file for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_")}


def read_class(file: Path) -> type[Peer]:
    """The class in `file`: its `PEER`."""
    # From the file itself: a module called as the library that it imports would shut that library out.
    spec = spec_from_file_location(f"peer_engine_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    peer: type[Peer] = module.PEER
    return peer
