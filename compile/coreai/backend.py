"""Core AI: one `.aimodel` per model with an entry point for every role and width. What it makes runs on Linux too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.export.tracing.graph import OWNERS, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, RequirementRecord
from dflash_compile.runtime.errors import IncompatibleError

from ..apple.lower import Stateful, lower
from ..apple.roles import roles_of
from ..manifest_records import graph_record
from ..pair_sizes import Models
from ..progress import Note, Progress
from .check import check_model
from .convert import convert
from .options import Options

__all__ = ["Options", "prepare", "requires"]

_LIBRARY, _MINIMUM = "coreai-core", "1.0.0b3"
# Tried in a process of its own, a model is held there, here and as a checkpoint.
_RUN_BELOW_BYTES = 1 << 30


@dataclass(frozen=True)
class _Prepared:
    models: Models
    graphs: Mapping[Owner, tuple[Stateful, ...]]

    @property
    def bytes(self) -> int:
        return sum(_bytes(graphs) for graphs in self.graphs.values())

    @property
    def measured(self) -> list[MeasuredRecord]:
        return []

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        for number, (owner, graphs) in enumerate(self.graphs.items()):
            progress("converting", number, len(self.graphs))
            file = f"{owner}/{owner}.aimodel"
            (directory / owner).mkdir()
            convert(graphs, self.models.sources, directory / file)
            records[owner].extend(
                graph_record(graph.role.signature, file, graph.role.rows, graph.role.function) for graph in graphs
            )
        return records

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        for number, (owner, graphs) in enumerate(self.graphs.items()):
            progress("trying the engines", number, len(self.graphs))
            if _bytes(graphs) < _RUN_BELOW_BYTES:
                check_model(directory / owner / f"{owner}.aimodel", graphs, self.models.sources)
            else:
                note(f"the {owner} is too large to be tried here: it was written, and not run")


def requires(_models: Models, _options: Options) -> RequirementRecord:
    """What the engines need of a machine."""
    return RequirementRecord(
        backend="coreai", package=_LIBRARY, minimum=_MINIMUM, built_with=_built_with(), exact_width=1
    )


def prepare(models: Models, _options: Options, progress: Progress, owners: Collection[Owner] = OWNERS) -> _Prepared:
    """Trace and lower every role at every width. Raises `IncompatibleError` where Core AI's converter is missing."""
    if find_spec("coreai_torch") is None:
        raise IncompatibleError("Core AI's converter is not installed", fix='run: pip install "dflash-compile[coreai]"')
    roles = {owner: roles_of(models, owner, "float32", late=True) for owner in OWNERS if owner in owners}
    graphs: dict[Owner, tuple[Stateful, ...]] = dict.fromkeys(roles, ())
    for owner, wanted in roles.items():
        for role in wanted:
            progress("tracing and lowering", sum(map(len, graphs.values())), sum(map(len, roles.values())))
            graphs[owner] = (*graphs[owner], lower(role.trace(models), role))
    return _Prepared(models, graphs)


def _bytes(graphs: Collection[Stateful]) -> int:
    """Of the weights that one of the graphs reads, in float32, once."""
    sizes = {
        ref: int(graph.program.state_dict[name].numel()) for graph in graphs for name, ref in graph.weights.items()
    }
    return 4 * sum(sizes.values())


def _built_with() -> str:
    try:
        return version(_LIBRARY)
    except PackageNotFoundError:
        return _MINIMUM
