"""Core ML: one package per model with a function for every role and width, which share weights and one state.

For the Neural Engine, which takes no large package, a model may be several, each with some of its layers.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dflash_compile.export.tracing.graph import OWNERS, Graph, Owner
from dflash_compile.runtime.bundle.manifest import GraphRecord, MeasuredRecord, PartRecord, RequirementRecord
from dflash_compile.runtime.errors import IncompatibleError

from ..apple.lower import Stateful, lower
from ..apple.packages import PartRole, partitioned
from ..apple.roles import Role, roles_of
from ..manifest_records import graph_record
from ..pair_sizes import Models
from ..progress import Note, Progress
from . import convert
from .check import check_package
from .chunks import check_size, starts_of
from .evaluator.lint import lint
from .names import GPU_STATE
from .options import Options
from .package import merge
from .precision import Compression, compression_of

__all__ = ["Options", "prepare", "requires"]

_LIBRARY, _MINIMUM = "coremltools", "9.0"
_PARTS = "parts"
# Evaluated in torch, a package takes several times its size in memory; larger ones are looked at, not run.
_RUN_BELOW_BYTES = 1 << 30


@dataclass(frozen=True)
class _Package:
    """One package on its way: every role and width of a model, or of some of its layers."""

    owner: Owner
    file: str
    """relative to the bundle"""
    graphs: tuple[Stateful, ...]


@dataclass(frozen=True)
class _Prepared:
    models: Models
    target: str
    packages: tuple[_Package, ...]
    compressions: Mapping[Owner, Compression]

    @property
    def bytes(self) -> int:
        """Every function is converted by itself before weights are shared: as often as that, in float16, is the most
        there is at once.
        """
        return sum(_bytes(graph) for package in self.packages for graph in package.graphs)

    @property
    def measured(self) -> list[MeasuredRecord]:
        return []

    def write(self, directory: Path, progress: Progress) -> Mapping[Owner, list[GraphRecord]]:
        records: dict[Owner, list[GraphRecord]] = {"target": [], "drafter": []}
        parts, count = directory / _PARTS, sum(len(package.graphs) for package in self.packages)
        for package in self.packages:
            parts.mkdir()
            (directory / package.file).parent.mkdir(exist_ok=True)
            done = {}
            for graph in package.graphs:
                progress("converting", sum(len(found) for found in records.values()), count)
                done[graph.role.function] = parts / f"{graph.role.function}.mlpackage"
                convert.convert(
                    graph, self.models.sources, self.compressions[package.owner], self.target, done[graph.role.function]
                )
                records[package.owner].append(_record(graph.role, package.file))
            merge(done, directory / package.file)
            shutil.rmtree(parts)
        return records

    def check(self, directory: Path, progress: Progress, note: Note) -> None:
        for number, package in enumerate(self.packages):
            progress("checking the packages", number, len(self.packages))
            saved = directory / package.file
            lint(saved)
            if not package.graphs[0].role.cache.in_state:
                check_size(saved)
            if sum(file.stat().st_size for file in saved.rglob("*") if file.is_file()) < _RUN_BELOW_BYTES:
                check_package(saved, package.graphs, self.models.sources, self.compressions[package.owner])
            else:
                note(
                    f"the {package.owner} package is too large to be evaluated here: its structure was checked, its"
                    " numbers were not"
                )
        note("Core ML runs on a Mac only: the packages were evaluated in torch here, not by Core ML")


def requires(_models: Models, _options: Options) -> RequirementRecord:
    """What the engines need of a machine."""
    return RequirementRecord(
        backend="coreml", package=_LIBRARY, minimum=_MINIMUM, built_with=_built_with(), exact_width=1
    )


def prepare(models: Models, options: Options, progress: Progress, owners: Collection[Owner] = OWNERS) -> _Prepared:
    """Trace and lower every role at every width. Raises `IncompatibleError` where coremltools is missing."""
    if find_spec(_LIBRARY) is None:
        raise IncompatibleError("Core ML's converter is not installed", fix='run: pip install "dflash-compile[coreml]"')
    in_state = options.cache_policy == GPU_STATE
    compressions = {owner: compression_of(options.precision_for(owner)) for owner in OWNERS if owner in owners}
    roles = {owner: roles_of(models, owner, "float16", in_state) for owner in compressions}
    packages: list[_Package] = []
    traced, count = 0, sum(map(len, roles.values()))
    for owner, wanted in roles.items():
        graphs = []
        for role in wanted:
            progress("tracing and lowering", traced, count)
            graphs.append(role.trace(models))
            _check_experts(graphs[-1], role)
            traced += 1
        packages += _packages(owner, wanted, graphs, () if in_state else starts_of(owner, graphs, compressions[owner]))
    return _Prepared(models, options.deployment_target, tuple(packages), compressions)


def _packages(
    owner: Owner, roles: Sequence[Role], graphs: Sequence[Graph], starts: Sequence[int]
) -> Iterator[_Package]:
    """One package, or one for each of the parts that begin before the layers `starts`."""
    for number, functions in enumerate(
        zip(*(partitioned(role, graph, starts) for role, graph in zip(roles, graphs, strict=True)), strict=True)
    ):
        name = f"{owner}-{number + 1}" if starts else owner
        yield _Package(owner, f"{owner}/{name}.mlpackage", tuple(lower(graph, role) for role, graph in functions))


def _record(role: Role, file: str) -> GraphRecord:
    """How the manifest says that `role` is called."""
    part = None
    if isinstance(role, PartRole):
        part = PartRecord(
            number=role.number, count=len(role.starts) + 1, layers=list(role.layers), taps=list(role.taps)
        )
    return graph_record(role.signature, file, role.rows, role.function, part=part)


def _check_experts(graph: Graph, role: Role) -> None:
    """Raises `IncompatibleError` for stacked weights: the converter turns them around, and compression knows no block
    or channel of them.
    """
    if any(".experts." in ref.tensor for ref in graph.weights.values()):
        lower(graph, role)  # what has no form in any of Apple's graphs is said first
        raise IncompatibleError(
            "mixtures of experts have no Core ML form here",
            fix="build with --backend coreai, or for another kind of machine",
        )


def _bytes(graph: Stateful) -> int:
    count: int = sum(graph.program.state_dict[name].numel() for name in graph.weights)
    return 2 * count


def _built_with() -> str:
    try:
        return version(_LIBRARY)
    except PackageNotFoundError:
        return _MINIMUM
